"""``stepwell import-ptb``: the files of PicklePersistence, found by StepwellPersistence."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from telegram import User
from telegram.ext import CommandHandler, ContextTypes, MessageHandler, PicklePersistence, filters

from stepwell import MemoryStorage, open_storage
from stepwell.adapters.imports.ptb import import_ptb
from stepwell.adapters.ptb import ConversationHandler, StepwellPersistence
from stepwell.cli import main
from stepwell.errors import InvalidOption, UsageError
from tests.adapters.ptb_bots import make_app, message
from tests.adapters.test_ptb_persistence import EVERY_TYPE

KEYBOARDS: Any = ([("uuid", 5.0, {"button": ("data", 1)})], {"query": "uuid"})


async def pickled(path: Path, *, single_file: bool = True) -> PicklePersistence[Any, Any, Any]:
    """Write a file as an application does."""
    theirs: PicklePersistence[Any, Any, Any] = PicklePersistence(path, single_file=single_file)
    theirs.set_bot(make_app().bot)
    for part in ("user_data", "chat_data", "bot_data"):
        await getattr(theirs, f"get_{part}")()
    await theirs.get_callback_data()
    await theirs.get_conversations("registration")
    await theirs.update_user_data(42, EVERY_TYPE)
    await theirs.update_user_data(43, {})
    await theirs.update_chat_data(42, {"in": "private"})
    await theirs.update_chat_data(-5, {"title": "A group"})
    await theirs.update_bot_data({"started": 3})
    await theirs.update_callback_data(KEYBOARDS)
    await theirs.update_conversation("registration", (42, 42), "EMAIL")
    await theirs.update_conversation("registration", (-5, 44), 1)
    await theirs.flush()
    return theirs


@pytest.mark.parametrize("single_file", [True, False], ids=["one file", "several files"])
async def test_stepwell_persistence_reads_what_pickle_persistence_has_written(
    tmp_path: Path, single_file: bool
) -> None:
    path = tmp_path / "bot.pickle"
    theirs = await pickled(path, single_file=single_file)
    async with MemoryStorage() as storage:
        done = await import_ptb(path, storage, namespace="ptb", trust_pickle=True)
        assert (done.written, done.verified, done.failed) == (5, 5, 0), done.problems
        ours: StepwellPersistence[Any, Any, Any] = StepwellPersistence(storage)
        assert await ours.get_user_data() == {42: EVERY_TYPE}
        assert await ours.get_chat_data() == await theirs.get_chat_data()
        assert await ours.get_bot_data() == await theirs.get_bot_data()
        assert await ours.get_callback_data() == KEYBOARDS
        assert await ours.get_conversations("registration") == await theirs.get_conversations("registration")
        again = await import_ptb(path, storage, namespace="ptb", trust_pickle=True)
        assert (again.written, again.same, again.kept) == (0, 5, 0)
        await ours.update_user_data(42, {"name": "Anna"})
        last = await import_ptb(path, storage, namespace="ptb", trust_pickle=True)
        assert (last.same, last.kept) == (4, 1)


async def test_the_bot_goes_on_in_the_state_of_the_file(tmp_path: Path) -> None:
    await pickled(tmp_path / "bot.pickle")
    url = f"sqlite:///{tmp_path}/bot.db"
    await import_ptb(tmp_path / "bot.pickle", url, bot_id=7, trust_pickle=True)
    seen: list[Any] = []

    async def email(update: Any, context: ContextTypes.DEFAULT_TYPE) -> int:
        assert context.user_data is not None
        seen.append((update.message.text, context.user_data["text"]))
        return ConversationHandler.END

    app = make_app(StepwellPersistence(url))
    entry = CommandHandler("register", email)
    states: Any = {"EMAIL": [MessageHandler(filters.TEXT, email)]}
    app.add_handler(ConversationHandler([entry], states, [], name="registration"))
    async with app:
        await app.process_update(message(app, "anna@example.com", user=42))
    assert seen == [("anna@example.com", EVERY_TYPE["text"])]


async def test_an_unsupported_value_is_reported_and_the_rest_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "bot.pickle"
    theirs = await pickled(path)
    await theirs.update_user_data(9, {"who": User(9, "Anna", False)})
    await theirs.flush()
    async with MemoryStorage() as storage:
        done = await import_ptb(path, storage, bot_id=7, trust_pickle=True)
        assert (done.written, done.failed, done.problems[0].key) == (5, 1, "9")
        assert "User" in done.problems[0].why


class Harm:
    """A pickle that calls a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        function, *arguments = self.call
        return function, tuple(arguments)


async def test_a_pickle_is_opened_only_if_it_is_trusted_and_in_another_process(tmp_path: Path) -> None:
    path, harm = tmp_path / "bot.pickle", tmp_path / "harm"
    path.write_bytes(pickle.dumps(Harm(os.mkdir, str(harm))))
    async with MemoryStorage() as storage:
        with pytest.raises(InvalidOption, match="--trust-pickle"):
            await import_ptb(path, storage, bot_id=7)
        assert not harm.exists()
        with pytest.raises(UsageError, match="not a file of PicklePersistence"):
            await import_ptb(path, storage, bot_id=7, trust_pickle=True)
        assert harm.exists()
        path.write_bytes(pickle.dumps(Harm(os._exit, 3)))
        with pytest.raises(UsageError, match="exit code 3"):
            await import_ptb(path, storage, bot_id=7, trust_pickle=True)
        path.write_bytes(b"no pickle")
        with pytest.raises(UsageError, match="cannot be unpickled: UnpicklingError"):
            await import_ptb(path, storage, bot_id=7, trust_pickle=True)
        with pytest.raises(UsageError, match="there is no file"):
            await import_ptb(tmp_path / "none", storage, bot_id=7, trust_pickle=True)
        with pytest.raises(InvalidOption, match="--bot-id"):
            await import_ptb(path, storage, trust_pickle=True)


def test_the_command_imports_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, url = tmp_path / "bot.pickle", f"sqlite:///{tmp_path}/bot.db"
    asyncio.run(pickled(path))
    given = ["import-ptb", str(path), "--bot-id", "7", "--storage", url, "--yes"]
    assert main(given) == 2
    assert "--trust-pickle" in capsys.readouterr().err
    assert not (tmp_path / "bot.db").exists()
    assert main([*given, "--trust-pickle", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["written"], report["verified"], report["problems"]) == (5, 5, [])

    async def users() -> Any:
        async with open_storage(url) as storage:
            ours: StepwellPersistence[Any, Any, Any] = StepwellPersistence(storage, namespace="ptb:7")
            return await ours.get_user_data()

    assert asyncio.run(users()) == {42: EVERY_TYPE}
