"""Fields that a type marks as secret: in the command line and in the inspector."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Annotated, TypedDict

import httpx
import pytest

from stepwell import Secret, open_storage
from stepwell.botfile import load_router
from stepwell.cli import _parser
from stepwell.fsm import FSM, Flow, state
from stepwell.inspector import inspector
from stepwell.operate.masking import MASK
from tests.cli.conftest import Command

BOT = """
from dataclasses import dataclass
from typing import Annotated, TypedDict
from stepwell import Secret
from stepwell.fsm import FSM, Flow, Form, Router, state

class Data(TypedDict):
    amount: int
    account: Annotated[str, Secret]

class Pay(Flow, name="masked_pay", data=Data):
    asked = state()
    default_state = asked

@dataclass
class Person:
    name: str
    street: Annotated[str, Secret]

class Profile(TypedDict):
    language: str
    birthday: Annotated[str, Secret]

form = Form(Person, name="masked_form")

def make_router(storage):
    return Router(FSM("masked", storage=storage, flows=[Pay, form.flow], profile=Profile, run_timers=False))
"""


class Pay(Flow, name="masked_pay"):
    """The flow of the bot without its data type."""

    asked = state()
    default_state = asked


class Person(Flow, name="masked_form"):
    """The flow of the form without its model."""

    ask_name = state()
    default_state = ask_name


async def test_the_command_line_and_the_inspector_mask_marked_fields_of_flows_forms_and_profiles(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "masked_bot.py"
    file.write_text(BOT)
    monkeypatch.setenv("STEPWELL_STORAGE", url := f"sqlite:///{tmp_path}/a.db")
    async with FSM("masked", storage=url, flows=[Pay, Person], run_timers=False) as fsm:
        async with fsm.conversation(key=(1, 1)) as ctx:
            ctx.start_flow(Pay)
            ctx.update_data(amount=5, account="DE1")
            ctx.profile.update(language="de", birthday="1990")
        async with fsm.conversation(key=(2, 2)) as ctx:
            ctx.start_flow(Person)
            ctx.update_data(name="Anna", street="Elm")
    assert "1990" in (await command("show", "masked", "1")).out
    assert "Elm" in (await command("show", "masked", "2")).out
    for arguments, hidden, shown in (
        (["show", "masked", "1"], ["DE1", "1990"], "language"),
        (["show", "masked", "2"], ["Elm"], "Anna"),
        (["ls", "masked"], ["DE1", "1990", "Elm"], "Anna"),
        (["find", "name=Anna"], ["Elm"], "Anna"),
        (["set", "masked", "1", "account=DE2", "--dry-run"], ["DE1", "DE2"], "account"),
        (["clear", "masked", "2", "--dry-run"], ["Elm"], "(2,2)"),
    ):
        for form in ([], ["--json"]):
            done = await command(*arguments, *form, "--import", str(file))
            assert done.code == 0
            assert shown in done.out
            assert not any(each in done.out for each in hidden), done.out
    async with open_storage(url) as storage:
        app = inspector(storage, [load_router(file, url)], token="a token for the tests", hosts=["test"])
        async with httpx.AsyncClient(base_url="http://test", transport=httpx.ASGITransport(app=app)) as client:
            await client.get("/", params={"token": app.token})
            for key, secret in (("1", "DE1"), ("2", "Elm")):
                page = await client.get("/api/record", params={"bot": "masked", "key": key})
                assert MASK in page.json()["record"]["data"].values()
                assert secret not in page.text
                assert "1990" not in page.text


class Marked(TypedDict):
    """Marks a field that other flows have too."""

    account_of_nobody: Annotated[str, Secret]


class Typed(Flow, name="masked_typed", data=Marked):
    """A flow that this process knows."""


async def test_a_record_whose_flow_is_unknown_is_masked_by_all_markers(tmp_path: Path, command: Command) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with open_storage(url) as storage:
        await storage.set_data("shop", (1, 1), {"account_of_nobody": "DE1", "name": "Anna"})
    shown = (await command("show", "shop", "1", "--storage", url, "--json")).json
    assert shown["data"] == {"account_of_nobody": MASK, "name": "Anna"}


PART = "s3cret"
#: In the place of each argument, in turns.
SECRETS = [
    "postgresql://user:s3cret-pass@127.0.0.1:1/db",
    "123456789:AAHs3cret-J5vGWJxfSeofSAs0K5PALDsaw",
    "Zs3cretQ9xJ5vGW7fSeofSAs0K5PALDsawBN3kL8pYc",
    "user:s3cret-p@ss@host",
]
#: Commands that serve, and arguments that are the URL of a storage or server, or a value that is stored and shown.
SERVING = {"botapi", "demo", "inspect"}
URLS = {"storage", "source", "target", "url", "api", "webhook", "value", "reason"}
#: What other arguments of a command need.
NEEDED = {"kind": "bot", "shell": "bash", "file": "no.py"}


def secret_arguments() -> Iterator[tuple[list[str], str]]:
    """Yield calls of every command with a secret in the place of each argument."""
    secrets = cycle(SECRETS)
    commands: dict[str, argparse.ArgumentParser] = _parser().commands  # type: ignore[assignment]
    for name, command in commands.items():
        if name in SERVING:
            continue
        positional = [each for each in command._actions if not each.option_strings]
        required = [each for each in positional if each.nargs not in ("?", "*")]
        yes = ["--yes"] if "--yes" in command.format_usage() else []
        given = {each.dest: NEEDED.get(each.dest, "x") for each in required}
        for action in command._actions:
            if action.dest in URLS or action.nargs == 0:
                continue
            secret = next(secrets)
            if action.option_strings:
                yield [name, *given.values(), action.option_strings[0], secret, *yes], secret
                # A misspelt option.
                yield [name, *given.values(), f"{action.option_strings[0]}x={secret}", *yes], secret
            else:
                yield [name, *(given | {action.dest: secret}).values(), *yes], secret


async def test_no_secret_in_the_place_of_another_argument_of_a_command_is_shown(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STORAGE", url := f"sqlite:///{tmp_path}/a.db")
    monkeypatch.setenv("BOT_TOKEN", "1:token")
    async with open_storage(url) as storage:
        await storage.set_data("x", ("x",), {"name": "Anna"})
    calls = 0
    for arguments, secret in secret_arguments():
        calls += 1
        done = await command(*arguments)
        assert PART not in done.out + done.err, (arguments, secret)
        assert "Traceback" not in done.err
    assert calls > 150


async def test_a_token_in_the_place_of_its_file_is_not_shown(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BOT_TOKEN", raising=False)
    monkeypatch.setenv("BOT_TOKEN_FILE", SECRETS[1])
    done = await command("webhook")
    assert done.code == 1
    assert "for the bot token (BOT_TOKEN_FILE in the environment) cannot be read: No such file" in done.err
    assert PART not in done.err
