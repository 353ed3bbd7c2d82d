"""``set``, ``clear``, ``forget``, ``resume``, ``cancel`` and ``answer``, on each storage that processes can share."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from stepwell import Log, open_storage
from stepwell.cli.output import span
from stepwell.errors import RecordReplaced, RunCancelled, RunStuck, VersionChanged
from stepwell.fsm import FSM
from stepwell.nodes import Node, NodeFlow, Parked, Wait, effect, linear
from stepwell.operate import edits
from stepwell.operate.record import read
from stepwell.slot import Slot
from stepwell.turns import Turns
from tests.backends import Backend
from tests.backends.sqlite import SQLite
from tests.cli.conftest import Command, Order
from tests.turns.people import People

FLOWS = """
from stepwell.nodes import Node, NodeFlow, Wait

class Stock(Node):
    def exec(self, prep_res):
        return 7
    def post(self, shared, prep_res, exec_res):
        shared["left"] = exec_res

class Ask(Wait):
    def prep(self, shared):
        return {"text": "Really?", "token": "t"}

order = NodeFlow(Stock(name="stock"), name="order")
def make_refund():
    return NodeFlow(Ask("ask"), name="refund")
"""


@pytest.mark.every_backend
async def test_set_changes_state_and_fields_and_ends_the_timer(
    url: str, command: Command, shared_backend: Backend
) -> None:
    version = (await command("show", "shop", "42", "--json")).json["version"]
    done = await command(
        "set", "shop", "42", "--state", "item", "name=Zoe", "count=2", 'to={"city": "Bern"}', "--unset", "password",
        "--version", version, "--yes", "--json",
    )  # fmt: skip
    record = done.json["record"]
    assert (record["flow"], record["state"], record["history"]) == ("order", "item", ["item", "address"])
    assert record["data"] == {"name": "Zoe", "count": 2, "to": {"city": "Bern"}}
    assert record["deadline"] is None
    assert record["version"] != version
    async with FSM("shop", storage=shared_backend.storage(url), flows=[Order], run_timers=False) as fsm:
        async with fsm.conversation(key=(42, 42)) as ctx:
            assert (ctx.state, ctx.data["name"]) == ("item", "Zoe")
            ctx.back()
            assert ctx.state == "address"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["name=Zoe", "--unset", "name"], 2, "the field 'name' is both set and removed"),
        (["--unset", "nosuch"], 3, "has no field 'nosuch'"),
        (["to.city=Bern"], 2, "is a path into the field 'to'"),
        (["--unset", "to.city"], 2, "is a path into the field 'to'"),
        (["state=paid"], 2, "the record has no field 'state'; did you mean --state paid?"),
        (["flow=order", "--state", "paid"], 2, "the record has no field 'flow'; did you mean --flow order?"),
        ([], 2, "nothing to change"),
    ],
)
async def test_an_edit_that_would_not_do_what_it_says_is_refused(
    arguments: list[str], code: int, said: str, url: str, command: Command
) -> None:
    before = (await command("show", "shop", "42", "--json")).json
    for way in ("--yes", "--dry-run"):
        done = await command("set", "shop", "42", *arguments, way)
        assert (done.code, done.out) == (code, "")
        assert said in done.err
    assert (await command("show", "shop", "42", "--json")).json == before


async def test_a_field_with_a_dot_in_its_name_can_be_set(url: str, command: Command) -> None:
    assert (await command("set", "shop", "42", "a.b=1", "--yes")).code == 0
    done = await command("set", "shop", "42", "a.b=2", "a=3", "--yes", "--json")
    assert (done.json["record"]["data"]["a.b"], done.json["record"]["data"]["a"]) == (2, 3)
    done = await command("set", "shop", "42", "a.b=4", "--yes", "--json")
    assert done.json["record"]["data"]["a.b"] == 4


async def test_an_edit_is_refused_if_the_record_changed_since_it_was_shown(url: str, command: Command) -> None:
    version = (await command("show", "shop", "42", "--json")).json["version"]
    assert (await command("set", "shop", "42", "name=Eve", "--version", version, "--yes")).code == 0
    for arguments in (["set", "shop", "42", "name=Mallory"], ["clear", "shop", "42"], ["forget", "shop", "42"]):
        done = await command(*arguments, "--version", version, "--yes", "--json")
        assert (done.code, done.out) == (3, "")
        assert "has changed since it was read" in done.err
    assert (await command("show", "shop", "42", "--json")).json["data"]["name"] == "Eve"


async def test_a_record_that_changes_between_question_and_answer_is_not_overwritten(
    shared_backend: Backend, url: str
) -> None:
    storage = shared_backend.storage(url)
    address = storage.address("shop", (42, 42))
    shown = (await read(storage, address)).version
    await storage.update_data("shop", (42, 42), {"name": "Eve"})
    for edit in (
        edits.edit(storage, address, edits.Edit(state="paid"), version=shown, who="test"),
        edits.clear(storage, address, version=shown, who="test"),
        edits.forget(storage, address, version=shown, who="test"),
    ):
        with pytest.raises(VersionChanged):
            await edit
    found = await storage.get_state("shop", (42, 42))
    assert found is not None
    assert (found.state, found.data["name"]) == ("address", "Eve")


async def test_an_edit_waits_for_a_handler_and_does_not_overtake_it(
    url: str, command: Command, shared_backend: Backend
) -> None:
    async with Slot(shared_backend.storage(url), "shop", (42, 42)) as slot:
        done = await command("set", "shop", "42", "--state", "item", "--wait", "0", "--yes")
        assert done.code == 3
        assert "a handler still holds" in done.err
        slot.state = "paid"
        assert await slot.commit()
    assert (await command("show", "shop", "42", "--json")).json["state"] == "paid"


async def test_forgetting_a_user_does_not_wait_for_a_handler_and_drops_its_changes(
    url: str, command: Command, shared_backend: Backend
) -> None:
    refused = await command("forget", "--user", "42", "--wait", "1s", "--yes")
    assert refused.code == 2
    assert "--wait needs a bot and a key" in refused.err
    async with Slot(shared_backend.storage(url), "shop", (42, 42)) as slot:
        assert (await command("forget", "shop", "42", "--wait", "0", "--yes")).code == 3
        assert (await command("forget", "--user", "42", "--yes")).code == 0
        slot.state = "paid"
        with pytest.raises(RecordReplaced):
            await slot.commit()
    assert (await command("show", "shop", "42")).code == 3


async def test_clear_ends_the_conversation_and_keeps_the_profile(
    url: str, command: Command, shared_backend: Backend
) -> None:
    storage = shared_backend.storage(url)
    async with FSM("shop", storage=storage, flows=[Order], run_timers=False).conversation(key=(43, 43)) as ctx:
        ctx.profile["language"] = "de"
    for key in ("42", "43"):
        assert (await command("clear", "shop", key, "--yes", "--json")).json["cleared"] is True
    assert (await command("show", "shop", "42")).code == 3
    left = (await command("show", "shop", "43", "--json")).json
    assert (left["flow"], left["state"], left["data"], left["deadline"]) == (None, None, {}, None)
    assert left["profile"] == {"language": "de"}


@pytest.mark.every_backend
async def test_forget_deletes_all_records_of_a_user(url: str, command: Command) -> None:
    dry = (await command("forget", "--user", "42", "--dry-run", "--json")).json
    assert dry == {"forgotten": 0, "records": {"shop": ["(42,42)"]}}
    assert (await command("show", "shop", "42")).code == 0
    assert (await command("forget", "--user", "42", "--yes", "--json")).json["forgotten"] == 1
    assert (await command("forget", "shop", "43", "--yes", "--json")).json["forgotten"] is True
    assert [each["key"] for each in (await command("ls", "shop", "--json")).json["records"]] == ["(44,44)"]
    assert (await command("forget", "--user", "42", "--yes", "--json")).json == {"forgotten": 0, "records": {}}


@pytest.mark.every_backend
async def test_forget_deletes_the_traces_of_a_cleared_record(
    url: str, command: Command, shared_backend: Backend
) -> None:
    async def handler(ctx: Any) -> None:
        ctx.update_data(name="Zoe")

    update = {"update_id": 1, "message": {"chat": {"id": 43, "type": "private"}, "from": {"id": 43}, "text": "hi"}}
    storage = shared_backend.storage(url)
    await FSM("shop", storage=storage, flows=[Order], run_timers=False).handle(update, handler)
    for key in ("42", "43"):
        assert (await command("clear", "shop", key, "--yes")).code == 0
        dry = await command("forget", "shop", key, "--dry-run", "--json")
        assert dry.json == {"forgotten": False, "bot": "shop", "traces": [f"({key},{key})"]}
        done = await command("forget", "shop", key, "--yes", "--json")
        assert done.json == {"forgotten": True, "bot": "shop", "traces": [f"({key},{key})"]}
        assert len(done.logged) == 1
        assert (await command("forget", "shop", key, "--yes")).code == 3
        assert await storage.traces("shop", f"user:{key}") == []
    assert (await command("forget", "shop", "99", "--yes")).code == 3


async def test_forget_deletes_the_logs_of_a_user(url: str, command: Command) -> None:
    async with open_storage(url) as storage:
        await Log(storage, "shop", 42, tags=("user:42",)).append("secret")
    dry = (await command("forget", "--user", "42", "--dry-run", "--json")).json
    assert dry["records"] == {"shop": ["(42,42)", '("shop",42)']}
    assert (await command("forget", "--user", "42", "--yes", "--json")).json["forgotten"] == 2
    async with open_storage(url) as storage:
        assert await Log(storage, "shop", 42).read() == []


async def test_forget_deletes_the_turns_of_a_bot_without_conversations(url: str, command: Command) -> None:
    async with open_storage(url) as storage:
        turns = Turns("agent", storage=storage)
        await turns.admit(People().message("secret"))
    dry = (await command("forget", "agent", "--user", "42", "--dry-run", "--json")).json
    assert dry["records"] == {"agent": ['("agent",(42,0))']}
    assert (await command("forget", "agent", "--user", "42", "--yes", "--json")).json["forgotten"] == 1
    async with open_storage(url) as storage:
        # Who has forgotten it stays.
        assert await storage.namespaces() == ['"audit"', "shop"]


@pytest.mark.every_backend
async def test_forget_deletes_the_logs_of_bots_without_conversations(
    url: str, command: Command, shared_backend: Backend
) -> None:
    storage = shared_backend.storage(url)
    for bot in ("other", "third"):
        await Log(storage, bot, 42, tags=("user:42",)).append("secret")
        await Log(storage, bot, 43, tags=("user:43",)).append("kept")
    assert (await command("forget", "other", "--user", "42", "--yes", "--json")).json["forgotten"] == 1
    unknown = await command("forget", "nobody", "--user", "42", "--yes")
    assert (unknown.code, unknown.err.count("\n")) == (3, 1)
    done = (await command("forget", "--user", "42", "--yes", "--json")).json
    assert done == {"forgotten": 2, "records": {"shop": ["(42,42)"], "third": ['("third",42)']}}
    for bot in ("other", "third"):
        assert [len(await Log(storage, bot, user).read()) for user in (42, 43)] == [0, 1]


async def test_forget_erases_a_record_from_the_file(command: Command, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with open_storage(url) as storage:
        await storage.set_data("shop", 42, {"name": "NO-TRACE"})
        # While the bot runs, the last writes are in the WAL too.
        assert (await command("forget", "shop", "42", "--storage", url, "--yes", "--json")).json["forgotten"] is True
        assert b"NO-TRACE" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("said", "code"), [("y\n", 0), ("n\n", 1), ("", 1)])
async def test_a_person_is_asked(
    said: str, code: int, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with open_storage(url) as storage:
        await storage.set_data("shop", (1, 1), {"name": "Anna", "pin": 1234})
    monkeypatch.setattr("sys.stdin", Terminal(said))
    done = await command("set", "shop", "1", "name=Bob", "pin=9876", "--storage", url)
    assert done.code == code
    assert 'name: "Anna" -> "Bob"' in done.out
    assert "1234" not in done.out
    assert "9876" not in done.out
    assert "Change shop (1,1)? [y/N]" in done.err
    async with open_storage(url) as storage:
        data = await storage.get_data("shop", (1, 1))
    assert data == ({"name": "Anna", "pin": 1234} if code else {"name": "Bob", "pin": 9876})


class Fails(Node):
    def exec(self, prep_res: Any) -> Any:
        raise RuntimeError("no stock")


class Ask(Wait):
    def prep(self, shared: Any) -> Any:
        return {"text": "Really?", "token": "t"}


async def start_runs(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> str:
    """Store a failed run ``bad`` and a parked run ``asks``, and return the URL."""
    url = backend.place()
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    storage = backend.storage(url)
    with pytest.raises(RuntimeError):
        await NodeFlow(Fails(name="stock"), name="order").run({"n": 1}, storage=storage, flow_id="bad", keep=True)
    with pytest.raises(Parked):
        await NodeFlow(Ask("ask"), name="refund").run({}, storage=storage, flow_id="asks", keep=True)
    return url


async def test_a_failed_run_is_put_into_the_queue_or_resumed_with_its_flow(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await start_runs(shared_backend, monkeypatch)
    file = tmp_path / "flows_of_resume.py"
    file.write_text(FLOWS)
    dry = await command("resume", "--status", "failed", "--dry-run", "--json")
    assert dry.json == {"resumed": [], "runs": ["bad"]}
    assert (await command("resume", "--status", "failed", "--flow", "other", "--yes", "--json")).json["runs"] == []
    assert (await command("resume", "--status", "failed", "--yes", "--json")).json["resumed"] == ["bad"]
    assert (await command("runs", "bad", "--json")).json["status"] == "queued"
    refused = await command("resume", "bad", "--yes")
    assert refused.code == 1
    assert "is queued" in refused.err
    done = await command("resume", "bad", str(file), "--yes", "--json")
    assert done.json == {"resumed": True, "finished": True, "shared": {"n": 1, "left": 7}}
    wrong = await command("resume", "asks", f"{file}:order", "--yes")
    assert wrong.code == 1
    assert "has the flow 'order', not 'refund'" in wrong.err
    parked = await command("resume", "asks", f"{file}:make_refund", "--yes", "--json")
    assert parked.json["run"]["status"] == "parked"


async def test_resuming_all_failed_runs_skips_those_that_were_undone(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await start_runs(shared_backend, monkeypatch)

    class Reserve(Node):
        def undo(self, shared: Any, result: Any) -> None:
            pass

    class Fails(Node):
        def exec(self, prep_res: Any) -> None:
            raise RuntimeError("sold out")

    with pytest.raises(RuntimeError):
        await linear(Reserve, Fails, name="saga").run(
            {}, storage=shared_backend.storage(url), flow_id="back", keep=True
        )
    dry = await command("resume", "--status", "failed", "--dry-run", "--json")
    assert (dry.code, json.loads(dry.out)["undone"]) == (0, ["back"])
    done = await command("resume", "--status", "failed", "--yes", "--json")
    assert (done.code, json.loads(done.out)["resumed"]) == (0, ["bad"])
    assert "skipped: back: its completed nodes were undone; start a new run" in done.err


async def test_resuming_a_run_names_the_effect_of_unknown_outcome_that_is_called_again(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = shared_backend.place()
    monkeypatch.setenv("STEPWELL_STORAGE", url)

    @effect
    async def charge(order: str) -> None:
        await asyncio.Event().wait()

    class Pay(Node):
        async def exec(self, prep_res: Any) -> None:
            await charge("o-7")

    flow = linear(Pay(timeout=0.05), name="shop", storage=shared_backend.storage(url))
    for flow_id in ("one", "two"):
        with pytest.raises(RunStuck):
            await flow.run({}, flow_id=flow_id)
    for given in (["one"], ["--status", "stuck"]):
        dry = await command("resume", *given, "--dry-run")
        assert "calls again, although nobody knows whether it was done: node 'Pay' (" in dry.out
        assert "charge)" in dry.out
        assert "if it was done: stepwell complete one NODE --result VALUE" in dry.out
    done = await command("resume", "one", "--yes", "--json")
    assert (done.json["resumed"], len(done.json["called_again"])) == (True, 1)
    many = await command("resume", "--status", "stuck", "--yes", "--json")
    assert (many.json["resumed"], list(many.json["called_again"])) == (["two"], ["two"])


async def test_an_answer_that_its_wait_does_not_accept_is_refused_without_the_code(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = shared_backend.place()
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    flow = linear(Wait("approved", accepts=bool), name="approve", storage=shared_backend.storage(url))
    with pytest.raises(Parked):
        await flow.run({}, flow_id="order-7")
    refused = await command("answer", "order-7", "perhaps", "--yes")
    assert (refused.code, refused.logged) == (1, [])
    assert "does not fit: Expected boolean, got string; nothing was stored" in refused.err
    shown = await command("runs", "order-7")
    assert 'accepts {"type": "boolean"}' in shown.out
    assert (await command("answer", "order-7", "true", "--yes", "--json")).json["answered"]
    assert await flow.resume("order-7") == {"approved": True}


async def test_a_cancelled_run_that_is_to_be_undone_is_left_to_a_worker(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Book(Node):
        def undo(self, shared: Any, result: Any) -> None:
            shared["undone"] = True

    url = f"sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    async with open_storage(url) as storage:
        flow = linear(Book(name="book"), Wait("go"), name="trip", storage=storage)
        await flow.run(flow_id="r", on_park="return")
        told = await command("cancel", "r", "--yes")
        assert "a worker undoes the nodes of r, then it is cancelled" in told.out
        assert "its nodes are undone; then it is cancelled" in (await command("runs", "r")).out
        with pytest.raises(RunCancelled):
            await flow.resume("r")
        shown = await command("runs", "r", "--json")
        assert (shown.json["status"], shown.json["undone"][0]["node"]) == ("cancelled", "book")


async def test_a_parked_run_is_answered_and_cancelled_without_its_code(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await start_runs(shared_backend, monkeypatch)
    file = tmp_path / "flows_of_answer.py"
    file.write_text(FLOWS)
    paused = await command("pause", "asks", "--yes", "--json")
    assert paused.json["paused"] == ["asks"]
    shown = await command("runs", "asks")
    assert "status    paused" in shown.out
    assert "resume it with: stepwell resume asks" in shown.err
    assert (await command("resume", "asks", "--yes", "--json")).json["run"]["status"] == "queued"
    asked = (await command("answer", "asks", "yes", "--dry-run", "--json")).json
    assert asked["question"] == {"text": "Really?", "token": "•••"}
    broken = await command("answer", "asks", '{"approved":', "--yes")
    assert (broken.code, broken.logged) == (2, [])
    assert "begins like JSON and is not JSON (Expecting value, character 13): correct it; to give a text" in broken.err
    done = await command("answer", "asks", '{"approved": true}', "--yes", "--json")
    assert done.json["answered"] is True
    for given in ("asks", asked["wait"]):
        second = await command("answer", given, '{"approved": false}', "--yes")
        assert (second.code, second.logged) == (3, [])
        assert "was answered before" in second.err
        assert "its time is over" not in second.err
    finished = await command("resume", "asks", f"{file}:make_refund", "--yes", "--json")
    assert finished.json["shared"] == {"ask": {"approved": True}}
    refused = await command("answer", "bad", "1", "--yes")
    assert refused.code == 1
    assert "does not wait for this answer" in refused.err
    cancelled = await command("cancel", "bad", "--reason", "paid twice", "--yes", "--json")
    assert cancelled.json["cancelled"] == ["bad"]
    run = (await command("runs", "bad", "--json")).json
    assert (run["status"], run["reason"]) == ("cancelled", "paid twice")
    again = await command("cancel", "bad", "--reason", "other", "--yes")
    assert (again.code, again.logged) == (3, [])
    assert again.out == "bad: order cancelled at stock\nbad is cancelled already; nothing was changed\n"
    told = await command("cancel", "bad", "--json")
    assert (told.code, json.loads(told.out)["already"]) == (3, ["bad"])
    assert (await command("runs", "bad", "--json")).json["reason"] == "paid twice"
    refused = await command("resume", "bad", "--yes")
    assert "is cancelled" in refused.err
    assert "To continue it here" not in refused.err
    assert (await command("cancel", "nope", "--yes")).code == 3


@pytest.mark.parametrize("kind", ["ValueError", "stepwell.StepwellError"])
async def test_the_error_of_a_run_that_fails_again_is_printed_without_control_characters(
    shared_backend: Backend, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    await start_runs(shared_backend, monkeypatch)
    file = tmp_path / f"flows_that_fail_{kind.rpartition('.')[2]}.py"
    failing = f"import stepwell\n{FLOWS}".replace("return 7", f"raise {kind}('\\x1b[31mred\\nnext line')")
    file.write_text(failing)
    failed = await command("resume", "bad", str(file), "--yes")
    assert failed.code == 1
    assert "\x1b" not in failed.err
    assert "\\u001b[31mred" in failed.err
    if kind == "ValueError":
        assert "failed again: ValueError: \\u001b[31mred\\u000anext line\n" in failed.err


async def test_a_damaged_record_is_listed_and_can_be_cleared(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = SQLite(tmp_path)
    url = backend.place()
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    async with open_storage(url) as storage:
        await storage.set_data("shop", (1, 1), {"name": "Anna"})
        await storage.set_data("shop", (2, 2), {"name": "Bob"})
        address = storage.address("shop", (1, 1))
    await backend.corrupt(url, address, "field", "name", lambda text: text.replace(b"Anna", b"Enna"))
    found = (await command("ls", "shop", "--damaged", "--json")).json["records"]
    assert [each["key"] for each in found] == ["(1,1)"]
    assert "checksum" in found[0]["damage"][0]
    assert "quarantine" not in found[0]["damage"][0], "showing a record keeps no copy"
    assert (await command("clear", "shop", "1", "--yes")).code == 0
    assert (await command("ls", "shop", "--damaged", "--json")).json["records"] == []
    async with open_storage(url) as storage:
        kept = await storage.quarantined("shop", (1, 1))
    assert kept is not None and "Enna" in kept["fields"]["name"]


@pytest.mark.parametrize("edit", [["name=Zoe"], ["--unset", "name"], ["city=Rome"]])
async def test_an_edit_keeps_a_copy_of_a_damaged_record(
    edit: list[str], tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = SQLite(tmp_path)
    url = backend.place()
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    async with open_storage(url) as storage:
        await storage.set_data("shop", (1, 1), {"name": "Anna", "age": 7})
        address = storage.address("shop", (1, 1))
    await backend.corrupt(url, address, "field", "name", lambda text: text.replace(b"Anna", b"Enna"))
    assert (await command("set", "shop", "1", *edit, "--yes")).code == 0
    async with open_storage(url) as storage:
        kept = await storage.quarantined("shop", (1, 1))
    assert kept is not None and "Enna" in kept["fields"]["name"] and "7" in kept["fields"]["age"]


def test_durations_are_short() -> None:
    assert [span(each) for each in (5, 65, 60, 3600, 3700, 90_000, 86_400 * 3)] == [
        "5s", "1m 5s", "1m", "1h", "1h 1m", "1d 1h", "3d"
    ]  # fmt: skip


@pytest.mark.every_backend
async def test_set_changes_the_shared_state_of_a_run_under_its_version(
    url: str, command: Command, shared_backend: Backend
) -> None:
    async with shared_backend.storage(url) as storage:
        with contextlib.suppress(Parked):
            await NodeFlow(Ask("ask"), name="refund").run({"n": 1, "token": "s3cret"}, storage=storage, flow_id="asks")
        shown = await command("set", "--run", "asks", "n=2", "to=Rome", "--dry-run")
        assert (shown.code, "n: 1 -> 2" in shown.out) == (0, True)
        done = await command("set", "--run", "asks", "n=2", "to=Rome", "token=new", "--yes", "--json")
        assert done.json["shared"] == {"n": 2, "to": "Rome", "token": "•••"}
        late = await command("set", "--run", "asks", "n=3", "--version", "1.a", "--yes")
        assert (late.code, (await command("set", "--run", "asks", "--unset", "to", "--yes")).code) == (3, 0)
        final = await NodeFlow(Ask("ask"), name="refund").resume("asks", "yes", storage=storage)
        assert final == {"n": 2, "token": "new", "ask": "yes"}
        for arguments in (["--state", "paid"], ["--run", "asks", "--state", "paid"], ["--run", "asks"]):
            assert (await command("set", *arguments, "--yes")).code == 2
