"""Fields that a type marks as secret: in the command line and in the inspector."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypedDict

import httpx
import pytest

from stepwell import Secret, open_storage
from stepwell.botfile import load_router
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
