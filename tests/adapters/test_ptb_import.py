"""``stepwell import-ptb``: the files of PicklePersistence, found by StepwellPersistence."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from telegram import User
from telegram.ext import CommandHandler, ContextTypes, MessageHandler, PicklePersistence, filters

from stepwell import MemoryStorage, open_storage
from stepwell.adapters.imports.ptb import import_ptb
from stepwell.adapters.ptb import ConversationHandler, StepwellPersistence
from stepwell.cli import main
from stepwell.cli.code import import_types
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
    await theirs.update_user_data(9, {"who": {"anna": Path("anna")}})
    await theirs.flush()
    async with MemoryStorage() as storage:
        done = await import_ptb(path, storage, bot_id=7, trust_pickle=True)
        assert (done.written, done.failed, done.problems[0].key) == (5, 1, "9")
        assert "Path" in done.problems[0].why


async def test_telegrams_objects_are_imported_and_get_their_bot(tmp_path: Path) -> None:
    path = tmp_path / "bot.pickle"
    theirs = await pickled(path)
    await theirs.update_user_data(9, {"who": User(9, "Anna", False)})
    await theirs.flush()
    async with MemoryStorage() as storage:
        done = await import_ptb(path, storage, bot_id=7, trust_pickle=True)
        assert (done.written, done.verified, done.failed) == (6, 6, 0), done.problems
        async with make_app(StepwellPersistence(storage)) as app:
            who = app.user_data[9]["who"]
            assert (who.first_name, who.get_bot()) == ("Anna", app.bot)


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


STARTED_BOT = """
import asyncio
from dataclasses import dataclass
from enum import Enum
from telegram.ext import ExtBot, PicklePersistence
import stepwell

print("this file prints when it is imported")

class Step(Enum):
    NAME = 1

class Shop:
    class Size(Enum):
        LARGE = 1

@stepwell.record_type(name="test_ptb_import.Cart")
@dataclass
class Cart:
    number: int

async def main():
    kept = PicklePersistence("bot.pickle")
    kept.set_bot(ExtBot("7:secret"))
    await kept.get_user_data()
    await kept.get_conversations("registration")
    await kept.update_user_data(42, {"cart": Cart(3)})
    await kept.update_conversation("registration", (42, 42), Step.NAME)
    await kept.update_conversation("registration", (43, 43), Shop.Size.LARGE)
    await kept.flush()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
def started_bot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a bot that was started as ``python import_bot.py``, so that its classes are those of ``__main__``."""
    path = tmp_path / "import_bot.py"
    path.write_text(STARTED_BOT)
    subprocess.run([sys.executable, path.name], cwd=tmp_path, check=True)
    # --import changes both.
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "import_bot", ModuleType("import_bot"))
    monkeypatch.chdir(tmp_path)
    return path


def test_a_bot_that_was_started_as_a_file_is_imported_with_its_classes(
    started_bot: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/bot.db"
    given = ["import-ptb", "bot.pickle", "--trust-pickle", "--bot-id", "7", "--storage", url, "--yes"]
    assert main([*given, "--import", "import_bot.py"]) == 0, capfd.readouterr().err
    code = sys.modules["import_bot"]

    async def imported() -> Any:
        async with open_storage(url) as storage:
            ours: StepwellPersistence[Any, Any, Any] = StepwellPersistence(storage, namespace="ptb:7")
            states = {key: (await storage.get_state("ptb:7", key)).data for key in (42, 43)}
            return await ours.get_user_data(), states

    users, states = asyncio.run(imported())
    assert users == {42: {"cart": code.Cart(3)}}
    assert states[42]["conversation.registration"] == {"(42,42)": {"enum": ["Step", "NAME"]}}
    assert states[43]["conversation.registration"] == {"(43,43)": {"enum": ["Shop.Size", "LARGE"]}}


def test_classes_of_the_started_file_need_the_file(
    started_bot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/bot.db"
    given = ["import-ptb", "bot.pickle", "--trust-pickle", "--bot-id", "7", "--storage", url, "--yes"]
    assert main(given) == 1
    error = capsys.readouterr().err
    assert "the class 'Step'" in error
    assert "--import bot.py" in error
    (tmp_path / "import_other.py").write_text("")
    assert main([*given, "--import", "import_other.py"]) == 1
    error = capsys.readouterr().err
    assert "the class 'Step'" in error
    assert "is not in import_other.py" in error


async def test_the_files_of_the_bot_are_not_imported_unless_the_pickle_is_trusted(
    started_bot: Path, tmp_path: Path
) -> None:
    async with MemoryStorage() as storage:
        with pytest.raises(InvalidOption, match="--trust-pickle"):
            await import_ptb("bot.pickle", storage, bot_id=7, imports=["import_bot.py"])
        with pytest.raises(UsageError, match=r"file '.*none\.py' does not exist"):
            await import_ptb("bot.pickle", storage, bot_id=7, trust_pickle=True, imports=["none.py"])
        import_types(["import_bot.py"])
        done = await import_ptb("bot.pickle", storage, bot_id=7, trust_pickle=True, imports=["import_bot.py"])
        assert (done.written, done.failed) == (2, 0), done.problems
