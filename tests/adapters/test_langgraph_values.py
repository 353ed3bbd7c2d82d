"""StepwellSaver: large values, and values that are encrypted."""

from __future__ import annotations

import secrets
import threading
from typing import Any, cast

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from stepwell.adapters.langgraph import StepwellSaver
from stepwell.adapters.langgraph.threads import Threads
from tests.adapters.test_langgraph_saver import THREAD, chat
from tests.backends import Backend


@pytest.mark.parametrize(
    "value", ["x" * 1_000_000, [{"role": "user", "content": "é" * 500}] * 500, [HumanMessage("x" * 500)] * 500]
)
async def test_large_values_are_encoded_in_another_thread(value: Any, backend: Backend) -> None:
    used: set[int] = set()

    class Recording(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            used.add(threading.get_ident())
            return super().dumps_typed(obj)

    saver = StepwellSaver(backend.storage(), serde=Recording())
    start: RunnableConfig = {"configurable": {"thread_id": "ann", "checkpoint_ns": ""}}
    checkpoint = {**empty_checkpoint(), "channel_values": {"value": value}, "channel_versions": {"value": "1"}}
    stored = await saver.aput(start, cast("Any", checkpoint), {"source": "loop", "step": 0}, {"value": "1"})
    await saver.aput_writes(stored, [("value", value)], "task")
    assert used and threading.get_ident() not in used
    found = await saver.aget_tuple(start)
    assert found is not None and found.pending_writes is not None
    assert found.checkpoint["channel_values"]["value"] == value == found.pending_writes[0][2]


class Cipher(CipherProtocol):
    """AES-GCM."""

    def __init__(self, key: bytes) -> None:
        self._key = AESGCM(key)

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        nonce = secrets.token_bytes(12)
        return "aes-gcm", nonce + self._key.encrypt(nonce, plaintext, None)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "aes-gcm"
        return self._key.decrypt(ciphertext[:12], ciphertext[12:], None)


async def test_an_encrypting_serializer_hides_all_values(backend: Backend) -> None:
    storage = backend.storage()
    serde = EncryptedSerializer(Cipher(b"0123456789abcdef"))
    graph = chat(StepwellSaver(storage, serde=serde))
    await graph.ainvoke({"messages": ["secret 1"], "constant": "secret 2", "count": 4711}, THREAD)
    thread = Threads(storage, "langgraph", 1 << 30).one("ann", serde)
    texts = [text for kind in "cvw" async for _, text in thread.all(kind)]
    assert len(texts) > 5
    assert not [text for text in texts if "secret" in text or "4711" in text or "4712" in text]
    state = await chat(StepwellSaver(storage, serde=serde)).aget_state(THREAD)
    assert state.values == {"messages": ["secret 1", "answer 1"], "constant": "secret 2", "count": 4712}
    wrong = EncryptedSerializer(Cipher(b"fedcba9876543210"))
    with pytest.raises(InvalidTag):
        await chat(StepwellSaver(storage, serde=wrong)).aget_state(THREAD)
