"""The examples in the docstrings of public names run."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell import configure
from stepwell.codec import types
from tests.constants import Constants
from tests.test_reference import MODULES, REFERENCE, functions, public

#: The indented block after a line that ends with two colons.
BLOCK = re.compile(r"::\n\n((?:(?: {4}.*)?\n)+)")

#: Names that the examples use and do not define.
GIVEN = """
import asyncio
import os
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Annotated

import pytest

from stepwell import *
from stepwell.adapters.langgraph import StepwellSaver
from stepwell.errors import *
from stepwell.fsm import *
from stepwell.inspector import inspector
from stepwell.turns import *
from stepwell.nodes import *
from stepwell.botapi import BotAPI, Bot, Person
from stepwell.dispatch import *
from stepwell.record import *
from stepwell.storage import *
from stepwell.telegram import *
from stepwell.testing import *

class Registration(Flow, name="registration"):
    get_name = state(to=["get_email"])
    get_email = state(to=[])
    default_state = get_name

@dataclass
class Person:
    name: str
    email: str

class Read(Node):
    pass

class CountWords(Node):
    def post(self, shared, prep_res, exec_res):
        shared["words"] = len(shared["text"].split())

def save(ctx, person):
    pass

update = {"update_id": 1, "message": {"from": {"id": 42}, "chat": {"id": 42}, "text": "/register"}}
fsm = FSM("my_bot", storage="memory://", flows=[Registration])
router = Router(fsm)
storage = MemoryStorage()
flow = quotes = invoices = linear(Read, name="words", storage=storage)
turns = Turns("my_bot", storage=storage)
report = b"..."
message = {"document": {"file_id": "7"}}
"""
#: Examples that need Telegram, a server, or a bot that answers; the guides have them complete.
NOT_RUN = {
    "BotAPI", "BotClient", "BroadcastResult", "Chat", "Inspector", "NodeFlow.stream", "NodeFlow.submit",
    "PostgresStorage", "RedisStorage", "Sender", "StepwellSaver", "StreamEntry", "broadcast", "find_token", "inspector",
    "keyboard", "run_polling", "run_polling_sync", "webhook",
}  # fmt: skip

#: Names that the example of another name shows.
SHOWN_BY = {
    "Applied": "Apply",
    "Claimed": "Claim",
    "FlowEdge": "FlowGraph",
    "Room": "World",
    "Struct": "decoder",
    "StepwellIsolation": "StepwellStorage",
    "Taken": "Claim",
    "TimerSource": "serve_timers",
    "replaced": "Place",
}


def examples() -> Iterator[Any]:
    """Yield each example once, with the name that it belongs to."""
    seen: set[int] = set()
    for module in MODULES:
        for name in public.names_of(module):
            value = getattr(importlib.import_module(module), name)
            if id(value) in seen:
                continue
            seen.add(id(value))
            members = functions(value) if inspect.isclass(value) else ()
            for title, each in [(name, value), *((f"{name}.{method}", member) for method, member in members)]:
                doc = inspect.getdoc(each) or ""
                if (getattr(value, "__module__", None) or "").startswith("stepwell") and title not in NOT_RUN:
                    for found in BLOCK.findall(f"{doc}\n"):
                        yield pytest.param(textwrap.dedent(found), id=title)


EXAMPLES = list(examples())


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_of_a_docstring_runs(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    monkeypatch.chdir(tmp_path)
    # The classes of other tests have no part in the example.
    owners = {key: cls for key, cls in types._OWNERS.items() if cls.__module__.startswith("stepwell.")}
    constants(value_owners=owners)
    names: dict[str, Any] = {"__name__": "__main__"}
    # Without the __future__ import of this file.
    exec(compile(GIVEN, "given", "exec", dont_inherit=True), names)
    compiled = compile(code, "docstring", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    try:
        if compiled.co_flags & inspect.CO_COROUTINE:
            asyncio.run(awaited(compiled, names))
        else:
            exec(compiled, names)
    finally:
        configure(storage=None, state_storage=None)


async def awaited(compiled: Any, names: dict[str, Any]) -> None:
    await eval(compiled, names)


def shown() -> Iterator[tuple[str, str, str]]:
    """Yield each public class and function with the name of its module and its docstring."""
    for _, module, name in public.homes(REFERENCE).values():
        value = getattr(importlib.import_module(module), name)
        # PocketFlow documents its classes; the values have comments.
        if module != "stepwell.pocketflow" and public.group_of(value) != "Values":
            yield module, name, f"{inspect.getdoc(value)}\n"


def test_every_public_class_function_and_error_has_an_example() -> None:
    docs = {name: doc for _, name, doc in shown()}
    assert [
        name for name, other in SHOWN_BY.items() if not re.search(rf"::\n.*\b{name}\b", docs[other], re.DOTALL)
    ] == []
    missing = [f"{module}.{name}" for module, name, doc in shown() if name not in SHOWN_BY and not BLOCK.search(doc)]
    assert missing == []
