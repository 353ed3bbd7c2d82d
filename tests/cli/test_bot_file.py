"""Commands that get the file of a bot, and use the storage that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell import open_storage
from tests.cli.conftest import Command, fill

OWN = """
from stepwell.fsm import FSM, Flow, Router, state

class Order(Flow, name="order"):
    item, address, paid = state(), state(), state()

router = Router(FSM("shop", storage="sqlite:///{folder}/shop.db", flows=[Order]))
"""
MADE = """
from stepwell.fsm import FSM, Flow, Router, state

class Order(Flow, name="order"):
    item, address, paid = state(), state(), state()

def make_router(storage):
    return Router(FSM("shop", storage=storage, flows=[Order]))
"""
FLOW = """
from stepwell.nodes import Node, linear

flow = linear(Node(name="one"), name="one", storage="sqlite:///{folder}/shop.db")
"""


@pytest.fixture(params=["own", "made"])
async def bot(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bot's file, and its storage with three conversations: the one that it names, or the file beside it."""
    monkeypatch.delenv("STEPWELL_STORAGE", raising=False)
    path = tmp_path / "bot.py"
    path.write_text(OWN.replace("{folder}", str(tmp_path)) if request.param == "own" else MADE)
    async with open_storage(f"sqlite:///{tmp_path}/{'shop' if request.param == 'own' else 'bot'}.db") as storage:
        await fill(storage)
    return str(path)


async def test_the_file_of_a_bot_names_its_storage_and_its_records(bot: str, command: Command) -> None:
    assert len((await command("ls", bot, "--json")).json["records"]) == 3
    assert (await command("ls", bot, "--state", "address", "--json")).json["records"][0]["state"] == "address"
    assert (await command("show", bot, "42", "--json")).json["data"]["name"] == "Anna"
    assert len((await command("find", "name=Bob", "--bot", bot, "--json")).json["records"]) == 1
    assert len((await command("timers", bot, "--json")).json["timers"]) == 2
    assert (await command("set", bot, "42", "name=Zoe", "--yes")).code == 0
    assert (await command("migrate", bot, "--dry-run", "--json")).json["old"] == {"shop": 0}
    done = await command("doctor", bot)
    assert "the code declares the flows and states of 3 records of 'shop'" in done.out


async def test_set_checks_a_state_against_the_file_of_the_bot(bot: str, command: Command) -> None:
    for arguments, said in {
        ("--state", "adress"): "'adress' is not a state of flow 'order'; its states are 'item', 'address', 'paid'",
        ("--state", "paid", "--flow", "ordre"): "the bot 'shop' has no flow 'ordre'; its flows are 'order'",
    }.items():
        done = await command("set", bot, "42", *arguments, "--yes")
        assert (done.code, done.out) == (1, "")
        assert f"{said}; nothing was changed" in done.err
    assert (await command("set", bot, "42", "--flow", "", "--state", "", "--yes")).code == 0
    # Its position belongs to another revision, whose states the file does not know.
    done = await command("set", bot, "42", "--flow", "order", "--state", "gift", "--revision", "2", "--yes", "--json")
    assert done.json["record"]["state"] == "gift"
    assert (await command("set", bot, "42", "--state", "wrapped", "--yes")).code == 0


async def test_a_given_storage_comes_before_that_of_the_file(
    bot: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(url := f"sqlite:///{tmp_path}/other.db") as storage:
        await storage.set_data("shop", 1, {"n": 1})
    for arguments in (["--storage", url], []):
        assert len((await command("ls", bot, *arguments, "--json")).json["records"]) == 1
        monkeypatch.setenv("STEPWELL_STORAGE", url)


async def test_files_without_a_storage_or_with_several_are_refused(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STEPWELL_STORAGE", raising=False)
    files = {
        "memory": OWN.replace("sqlite:///{folder}/shop.db", "memory://"),
        "missing": OWN.replace("{folder}", str(tmp_path)),
        "flow": FLOW.replace("{folder}", str(tmp_path)),
        "several": OWN.replace("{folder}", str(tmp_path)) + FLOW.replace("{folder}", str(tmp_path / "x")),
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    for arguments, message in [
        (["ls"], "no storage is given; pass --storage sqlite:///bot.db, set STEPWELL_STORAGE, or give the bot's file"),
        (["ls", "memory.py"], "is in the memory of one process"),
        (["doctor", "missing.py"], "shop.db; run the bot first"),
        (["ls", "flow.py"], "flow.py has no router; give the name of a bot, and --storage"),
        (["doctor", "several.py"], "the code uses several storages"),
        (["inspect", "missing.py"], "shop.db; run the bot first"),
        (["inspect"], "no storage is given"),
    ]:
        given = [str(tmp_path / each) if each.endswith(".py") else each for each in arguments]
        done = await command(*given)
        assert (done.code, done.err.count("\n")) == (1, 1), done.err
        assert message in done.err
    assert not (tmp_path / "shop.db").exists()
