"""The pages and the writes of the inspector."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import httpx
import pytest

from stepwell import Log, MemoryStorage, Secret, record_type
from stepwell.engine import Apply, Change, Get
from stepwell.fsm import FSM, Flow, state
from stepwell.inspector import inspector, requests, subject
from stepwell.inspector.flows import KnownFlows
from stepwell.inspector.subject import Subject
from stepwell.nodes import Limit, Node, NodeFlow, RunFailed, worker
from stepwell.operate.counts import AllCounts, all_counts
from stepwell.operate.masking import MASK
from stepwell.operate.processes import processes
from stepwell.operate.records import Count
from stepwell.operate.run_list import RunCount
from stepwell.operate.runs import show_run
from stepwell.storage import Storage
from tests.constants import Constants
from tests.inspector import shop
from tests.inspector.conftest import TOKEN, Browser, app_of
from tests.until import until


async def get(client: httpx.AsyncClient, name: str, /, **params: Any) -> Any:
    answer = await client.get(f"/api/{name}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()[name]


@pytest.mark.every_backend
async def test_the_overview_has_counts_timers_runs_and_schedules(storage: Storage, browse: Browser) -> None:
    client = await browse(app_of(storage))
    while not (found := await get(client, "overview"))["looked"]:
        pass
    assert [(row["bot"], row["flow"], row["state"], row["records"]) for row in found["states"]] == [
        ("shop", "order", "address", 2),
        ("shop", "order", "voucher", 1),
    ]
    assert {(row["flow"], row["status"]): row["runs"] for row in found["runs"]} == {
        ("approval", "parked"): 1,
        ("approval", "queued"): 1,
        ("charging", "failed"): 1,
        ("packing", "failed"): 1,
    }
    assert [row["key"] for row in found["timers"]] == ["(42,42)", "(43,43)"]
    assert (found["processes"], found["stopped"], found["minutes"]) == ([], [], {})
    assert sorted((row["is_bad"], row["text"]) for row in found["problems"]) == [
        (False, "1 run waits for an answer or for other runs"),
        (True, "1 conversation of shop in 'voucher', a state that the flow 'order' does not have"),
        (True, "1 run of approval waits in the queue, and no worker of this flow was seen"),
        (True, "2 runs have failed"),
    ]
    assert [(row["name"], row["times"]) for row in found["schedules"]] == [("nightly", "every 3600 s")]
    assert found["complete"]


FILTERS: list[tuple[dict[str, str], list[str]]] = [
    ({}, ["(42,42)", "(43,43)", "(44,44)"]),
    ({"state": "address"}, ["(42,42)", "(43,43)"]),
    ({"flow": "order", "state": "voucher"}, ["(44,44)"]),
    ({"flow": ""}, []),
    ({"key": "43"}, ["(43,43)"]),
    ({"key": "99"}, []),
    ({"user": "42"}, ["(42,42)"]),
    ({"chat": "43"}, ["(43,43)"]),
    ({"tag": "user:44"}, ["(44,44)"]),
    ({"older": "3600"}, []),
    ({"field": "name=Bob"}, ["(43,43)"]),
    ({"field": "to.city=Rome", "state": "voucher"}, ["(44,44)"]),
    ({"field": "to.lines.$tuple.1=2"}, ["(42,42)", "(43,43)", "(44,44)"]),
    ({"field": "to.city=7"}, []),
    ({"damaged": "1"}, []),
]


@pytest.mark.every_backend
async def test_conversations_are_filtered(storage: Storage, browse: Browser) -> None:
    client = await browse(app_of(storage))
    for params, keys in FILTERS:
        found = await get(client, "records", bot="shop", **params)
        assert (params, sorted(row["key"] for row in found["rows"])) == (params, keys)


async def test_lists_have_pages(storage: Storage, browse: Browser, constants: Constants) -> None:
    client = await browse(app_of(storage))
    constants(views_page=2)
    for name, row_id, params in (("records", "key", {"bot": "shop"}), ("runs", "flow_id", {})):
        first = await get(client, name, **params)
        assert len(first["rows"]) == 2
        second = await get(client, name, **params, after=first["after"])
        assert second["after"] is None
        ids = [row[row_id] for row in (*first["rows"], *second["rows"])]
        assert len(ids) == len(set(ids)) == (3 if name == "records" else 4)


async def test_a_list_of_runs_begins_anew_if_its_last_run_is_gone(storage: Storage, browse: Browser) -> None:
    answer = await (await browse(app_of(storage))).get("/api/runs", params={"after": "gone"})
    assert (answer.status_code, "start from its beginning" in answer.json()["error"]) == (400, True)


async def test_a_search_ends_after_a_number_of_records(storage: Storage, browse: Browser, constants: Constants) -> None:
    client = await browse(app_of(storage))
    constants(views_looked=1)
    for name in ("records", "runs"):
        found = await get(client, name, older="3600")
        assert (found["rows"], found["complete"]) == ([], False)
        assert found["looked"] >= 1


@pytest.mark.parametrize("limit", ["LOOKED", "SECONDS"])
async def test_a_search_by_a_field_continues_where_it_ended(
    storage: Storage, browse: Browser, monkeypatch: pytest.MonkeyPatch, constants: Constants, limit: str
) -> None:
    client = await browse(app_of(storage))
    monkeypatch.setattr(requests, limit, {"LOOKED": 1, "SECONDS": 0}[limit])
    constants(search_page=1)
    keys, looked, after = [], 0, {}
    for _ in range(4):
        found = await get(client, "records", bot="shop", field="name=Bob", **after)
        keys += [row["key"] for row in found["rows"]]
        looked += found["looked"]
        if found["after"] is None:
            break
        after = {"after": found["after"]}
    assert (keys, looked) == (["(43,43)"], 3)
    assert after, "it was read in one go"


async def test_runs_are_searched_by_a_shared_field_in_parts(
    storage: Storage, browse: Browser, constants: Constants
) -> None:
    client = await browse(app_of(storage))
    assert (await get(client, "runs", tag="parent:nobody"))["rows"] == []
    constants(views_looked=1, search_page=1)
    ids, after = [], {}
    for _ in range(5):
        found = await get(client, "runs", field="order=pack-1", **after)
        ids += [row["flow_id"] for row in found["rows"]]
        if found["after"] is None:
            break
        after = {"after": found["after"]}
    assert (ids, found["complete"]) == (["pack-1"], True)


async def test_a_page_does_not_wait_for_counts_that_take_long(
    storage: Storage, browse: Browser, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    ready = asyncio.Event()

    async def slow(*arguments: Any, **options: Any) -> AllCounts:
        await ready.wait()
        return await all_counts(*arguments, **options)

    monkeypatch.setattr(subject, "all_counts", slow)
    constants(reading_prompt=0.01)
    app = app_of(storage)
    client = await browse(app)
    found = await get(client, "overview")
    assert (found["states"], found["runs"], found["looked"]) == (None, None, False)
    ready.set()
    while (found := await get(client, "overview"))["states"] is None:
        pass
    assert len(found["states"]) == 2
    monkeypatch.setattr(app._subject._quick, "_fresh_until", 0.0)
    ready.clear()
    again = await get(client, "overview")
    assert [row["records"] for row in again["states"]] == [row["records"] for row in found["states"]]
    await app.close()


async def test_the_overview_reads_timers_while_it_waits_for_counts(
    storage: Storage, browse: Browser, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    due, asked = storage.due, asyncio.Event()

    async def reads_timers(*arguments: Any, **options: Any) -> Any:
        asked.set()
        return await due(*arguments, **options)

    async def counts_after_timers(*arguments: Any, **options: Any) -> AllCounts:
        await asked.wait()
        return await all_counts(*arguments, **options)

    monkeypatch.setattr(storage, "due", reads_timers)
    monkeypatch.setattr(subject, "all_counts", counts_after_timers)
    constants(reading_prompt=60)
    client = await browse(app_of(storage))
    async with asyncio.timeout(30):
        assert (await get(client, "overview"))["states"] is not None


async def test_counts_are_kept_in_proportion_to_the_time_that_they_take() -> None:
    reads: list[int] = []

    async def read() -> int:
        reads.append(len(reads))
        return reads[-1]

    kept = subject.Reading(read)
    assert await kept.get(wait=10) == 0
    kept._fresh_until = float("inf")
    assert await kept.get(wait=10) == 0
    kept._fresh_until = 0.0
    assert await kept.get(wait=10) == 1


async def test_exact_counts_and_the_oldest_writes_follow_counts_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = asyncio.Event()

    async def count(*_: Any, oldest: bool, **__: Any) -> AllCounts:
        if not oldest:
            states = [Count("shop", "order", "address", 1000, None, more=True), Count("shop", "order", "item", 3, None)]
            return AllCounts(states, [RunCount("packing", "failed", 1000, None, more=True)], True)
        await ready.wait()
        states = [Count("shop", "order", "address", 1234, 5.0), Count("shop", "order", "item", 2, 7.0)]
        return AllCounts(states, [RunCount("packing", "failed", 2345, 6.0)], True)

    monkeypatch.setattr(subject, "all_counts", count)
    known = Subject(MemoryStorage(), KnownFlows([]))
    first = await known.counts()
    assert first is not None
    assert [(row.records, row.more, row.oldest) for row in first.states] == [(1000, True, None), (3, False, None)]
    ready.set()
    while (found := await known.counts()) == first:
        await asyncio.sleep(0)
    assert found is not None
    assert [(row.records, row.more, row.oldest) for row in found.states] == [(1234, False, 5.0), (3, False, 7.0)]
    assert found.runs == [RunCount("packing", "failed", 2345, 6.0)]
    await known.close()


async def test_a_record_is_shown_with_its_secrets_masked(storage: Storage, browse: Browser) -> None:
    found = await get(await browse(app_of(storage)), "record", bot="shop", key="(42,42)")
    assert (found["flow"], found["state"], found["history"]) == ("order", "address", ["item"])
    assert [abs(at - found["written_at"]) < 60 for at in found["entered_at"]] == [True, True]
    assert found["data"] == {
        "name": "Anna",
        "password": MASK,
        "to": {"city": "Rome", "lines": {"$tuple": [1, 2]}},
    }
    assert sorted(found["tags"]) == ["chat:42", "user:42"]
    assert found["deadline"] > found["written_at"]
    assert found["version"]


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("records", "password=hunter2"),
        ("records", "password=wrong"),
        ("records", "deep.api_key=sk-1"),
        ("records", 'deep={"api_key": "sk-1"}'),
        ("records", "deep=1"),
        ("runs", "api_key=sk-1"),
        ("runs", "nobody.api_key=sk-1"),
        ("runs", 'deep={"token": "sk-1"}'),
    ],
)
async def test_a_search_for_a_masked_field_is_refused(storage: Storage, browse: Browser, name: str, field: str) -> None:
    client = await browse(app_of(storage, allow_write=False))
    answer = await client.get(f"/api/{name}", params={"bot": "shop", "field": field})
    if field == "deep=1":
        assert answer.status_code == 200
    else:
        assert answer.status_code == 400
        assert f"'{field.partition('=')[0]}' has a secret, which is masked here" in answer.json()["error"]


class Payment(TypedDict):
    """The data of a flow with a field that only its type marks."""

    account: Annotated[str, Secret]
    deep: dict[str, Any]


class Pay(Flow, name="views_pay", data=Payment):
    """A flow with marked data."""

    asked = state()
    default_state = asked


@record_type(name="views.Card")
@dataclass
class Card:
    """A class whose field is marked."""

    number: Annotated[str, Secret]
    month: int = 1


async def test_a_search_for_a_field_that_a_type_marks_is_refused(storage: Storage, browse: Browser) -> None:
    async with FSM("pay", storage=storage, flows=[Pay], run_timers=False).conversation(key=1) as ctx:
        ctx.start_flow(Pay)
        ctx.update_data(account="DE1", deep={"card": Card("4111")})
    client = await browse(app_of(storage))

    async def rows(field: str) -> Any:
        answer = await client.get("/api/records", params={"bot": "pay", "field": field})
        return len(answer.json()["records"]["rows"]) if answer.status_code == 200 else answer.json()["error"]

    for field in ("account=DE1", "account=DE2", "deep.card.number=4111", "deep.card.number=5"):
        assert "has a secret, which is masked here" in await rows(field)
    whole = '{"card": {"$record": ["views.Card", {"number": "4111", "month": 1}]}}'
    assert await rows(f"deep={whole}") == "'deep' has a secret, which is masked here and cannot be searched for; " + (
        "search by another field, or with stepwell find or stepwell runs --field, which need the URL of the storage"
    )
    assert await rows("deep.card.month=1") == 1


class Leak(Node):
    """Fails with an error that quotes secrets."""

    def exec(self, prep_res: Any) -> None:
        raise RuntimeError(
            "cannot connect to postgresql://shop:s3cret@p@ss@db.example/shop with token 123456789:AAHdqTcvCH1vGWJxfS "
            "and {'api_key': 'k-quoted', \"password\": \"two words\"}, password=plain; the card is 4111-2222; "
            "see http://localhost:8080/help for user@example.com"
        )


async def test_secrets_in_the_errors_of_runs_are_masked(storage: Storage, browse: Browser) -> None:
    flow = NodeFlow(Leak(), name="leaking")
    with pytest.raises((RuntimeError, RunFailed)):
        await flow.run({"deep": {"card_number": "4111-2222"}}, storage=storage, flow_id="leak-1", keep=True)
    waiting = NodeFlow(Leak(), name="leaking")
    await waiting.submit({}, storage=storage, flow_id="leak-2")
    await waiting.cancel("leak-2", "redis://:s3cret@host is away", storage=storage)
    client = await browse(app_of(storage))
    for name, params in (
        ("run", {"id": "leak-1"}),
        ("runs", {"status": "failed"}),
        ("run", {"id": "leak-2"}),
        ("runs", {"id": "leak-1"}),
        ("runs", {"status": "cancelled"}),
    ):
        text = (await client.get(f"/api/{name}", params=params)).text
        shown = json.dumps(json.loads(text), ensure_ascii=False)
        assert MASK in shown
        secrets = ("s3cret", "p@ss", "AAHdq", "k-quoted", "two words", "plain", "4111-2222")
        assert [each for each in secrets if each in shown] == []
    error = (await get(client, "run", id="leak-1"))["errors"][0]
    for text in (error["message"], error["traceback"]):
        assert f"postgresql://shop:{MASK}@db.example/shop with token {MASK} and" in text
        assert "see http://localhost:8080/help for user@example.com" in text


async def test_a_run_is_shown_with_errors_waits_progress_and_queue(storage: Storage, browse: Browser) -> None:
    client = await browse(app_of(storage))
    failed = await get(client, "run", id="charge-1")
    assert (failed["status"], failed["node"], failed["shared"]["api_key"]) == ("failed", "Charge", MASK)
    assert (failed["errors"][0]["type"], failed["errors"][0]["attempt"]) == ("RuntimeError", 1)
    assert "in exec" in failed["errors"][0]["traceback"]
    parked = await get(client, "run", id="approve-1")
    assert [wait["question"] for wait in parked["waits"]] == [{"text": "Approve it?", "token": MASK}]
    queued = await get(client, "run", id="queued-1")
    assert (queued["status"], queued["priority"], queued["partition"]) == ("queued", 3, "eu")
    assert queued["queue"]
    assert [row["flow_id"] for row in (await get(client, "runs", status="failed", flow="packing"))["rows"]] == [
        "pack-1"
    ]
    batch = await get(client, "run", id="pack-1")
    assert batch["progress"] == [{"node": "Pack", "done": 2, "total": 5}]
    each, failure = batch["history"]
    assert (each["node"], each["attempts"], each["duration"] < 60) == ("Count", 1, True)
    assert abs(each["started_at"] - batch["started_at"]) < 60
    assert (failure["node"], failure["action"], failure["error"]) == ("Pack", None, ["RuntimeError", "no more boxes"])


async def test_the_runs_at_each_node_are_counted(storage: Storage, browse: Browser, constants: Constants) -> None:
    client = await browse(app_of(storage))
    while (found := await get(client, "flow_counts"))["nodes"] is None or found["states"] is None:
        pass
    assert [(row["flow"], row["node"], row["status"], row["runs"]) for row in found["nodes"]] == [
        ("approval", "approved", "parked", 1),
        ("charging", "Charge", "failed", 1),
        ("packing", "Pack", "failed", 1),
    ]
    assert (found["all_nodes"], sum(row["records"] for row in found["states"])) == (True, 3)
    for node, ids in (("Pack", ["pack-1"]), ("Pac", [])):
        rows = (await get(client, "runs", flow="packing", node=node))["rows"]
        assert [row["flow_id"] for row in rows] == ids
    constants(counted_at_nodes=1)
    client = await browse(app_of(storage))
    while (found := await get(client, "flow_counts"))["nodes"] is None:
        pass
    assert (len(found["nodes"]), found["all_nodes"]) == (2, False)


async def test_a_page_that_has_not_changed_is_not_sent_again(storage: Storage, browse: Browser) -> None:
    client = await browse(app_of(storage, allow_write=True))
    for url in ("/api/run?id=charge-1", "/api/records?bot=shop"):
        tag = {"If-None-Match": (await client.get(url)).headers["ETag"]}
        same = await client.get(url, headers=tag)
        assert (url, same.status_code, same.content) == (url, 304, b"")
    shown = await get(client, "run", id="charge-1")
    await client.post("/api/cancel", json={"id": "charge-1", "version": shown["version"]})
    tag = {"If-None-Match": f"{shown['version']} admin"}
    assert (await client.get("/api/run?id=charge-1", headers=tag)).json()["run"]["status"] == "cancelled"
    assert (await client.get("/api/run?id=gone", headers=tag)).status_code == 404


async def test_a_damaged_log_is_a_problem_and_does_not_hide_the_others(storage: Storage, browse: Browser) -> None:
    log = Log(storage, "shop", "updates set aside")
    await log.append({"update": "{}"})
    stored = await storage.perform(Get(log.address, parts=True))
    damaged = dict.fromkeys(stored.parts, "damaged")
    await storage.perform(Apply(log.address, Change(storage.ids(), parts=damaged)))
    client = await browse(app_of(storage))
    found = await until(lambda: get(client, "overview"), lambda found: found["looked"])
    texts = [row["text"] for row in found["problems"]]
    assert [text for text in texts if text.startswith("a log of shop cannot be read")]
    assert "2 runs have failed" in texts


SORTED: list[tuple[str, list[str]]] = [
    ("run", ["approve-1", "charge-1", "pack-1", "queued-1"]),
    ("-run", ["queued-1", "pack-1", "charge-1", "approve-1"]),
    ("started", ["charge-1", "approve-1", "pack-1", "queued-1"]),
    ("-waiting", ["charge-1"]),
    ("-priority", ["queued-1"]),
    ("partition", ["queued-1"]),
]


async def test_runs_are_sorted_and_those_that_need_a_look_are_first(
    storage: Storage, browse: Browser, constants: Constants
) -> None:
    client = await browse(app_of(storage))
    assert [row["status"] for row in (await get(client, "runs"))["rows"]] == ["failed", "failed", "parked", "queued"]
    for sort, ids in SORTED:
        found = await get(client, "runs", sort=sort)
        assert (sort, [row["flow_id"] for row in found["rows"]][: len(ids)]) == (sort, ids)
        assert (found["sorted"], found["all"]) == (4, True)
    constants(views_page=3)
    first = await get(client, "runs", sort="run")
    second = await get(client, "runs", sort="run", after=first["after"])
    assert [row["flow_id"] for row in (*first["rows"], *second["rows"])] == SORTED[0][1]
    assert second["after"] is None
    constants(views_looked=1, search_page=1)
    assert (await get(client, "runs", sort="run"))["all"] is False


@pytest.mark.every_backend
async def test_queues_show_their_order_and_who_works_them_off(
    storage: Storage, browse: Browser, constants: Constants
) -> None:
    constants(presence_first=0.01)
    client = await browse(app_of(storage))
    approval = shop.flows()[2]
    for number in range(3):
        await approval.submit({}, storage=storage, flow_id=f"waits-{number}", priority=number)
    await approval.submit({}, storage=storage, flow_id="queued-2", partition="eu")
    found = await get(client, "queues")
    rows = {row["partition"]: row for row in found["rows"]}
    assert (rows[None]["waiting"], rows[None]["next"]["flow_id"], rows[None]["workers"]) == (4, "queued-1", 0)
    assert (rows['"eu"']["waiting"], rows['"eu"']["holder"]) == (1, "queued-1")
    order = await get(client, "queue", name=rows[None]["name"])
    assert [(row["place"], row["flow_id"]) for row in order["rows"]] == [
        (1, "queued-1"),
        (2, "waits-2"),
        (3, "waits-1"),
        (4, "waits-0"),
    ]
    constants(views_page=3)
    first = await get(client, "queue", name=rows[None]["name"])
    second = await get(client, "queue", name=rows[None]["name"], after=first["after"])
    assert ([row["place"] for row in second["rows"]], second["after"]) == ([4], None)
    others = NodeFlow(Node(), name="others")
    async with worker([others], storage=storage, limits={others: Limit(everywhere=5)}):
        (worked,) = await until(lambda: processes(storage, limit=9))
    assert (worked.concurrency, worked.limits["others"]["everywhere"]) == (32, 5)


async def test_the_shared_state_of_a_run_is_edited_under_its_version(storage: Storage, browse: Browser) -> None:
    client = await browse(app_of(storage, allow_write=True))
    shown = await get(client, "run", id="charge-1")
    change = {"id": "charge-1", "version": shown["version"], "field": "order", "value": '{"number": 7}'}
    assert (await client.post("/api/set_shared", json=change)).json()["run"]["shared"]["order"] == {"number": 7}
    late = await client.post("/api/remove_shared", json=change)
    assert (late.status_code, late.json()["conflict"]) == (409, True)
    shown = await get(client, "run", id="charge-1")
    removed = await client.post("/api/remove_shared", json={**change, "version": shown["version"]})
    assert "order" not in removed.json()["run"]["shared"]
    async with worker([NodeFlow(Node(name="Charge"), name="charging")], storage=storage):
        shown = await get(client, "run", id="charge-1")
        await client.post("/api/retry", json={"id": "charge-1", "version": shown["version"]})
        await until(lambda: get(client, "run", id="charge-1"), lambda run: run["status"] == "finished")
    shown = await get(client, "run", id="charge-1")
    ended = await client.post("/api/set_shared", json={**change, "version": shown["version"]})
    assert (ended.status_code, "does not go on" in ended.json()["error"]) == (400, True)


async def test_a_run_is_retried_and_forked_at_a_node(storage: Storage, browse: Browser) -> None:
    client = await browse(app_of(storage, allow_write=True))
    flows = {flow["name"]: flow["paths"] for flow in (await get(client, "flows"))["runs"]}
    assert flows["packing"] == ["Count", "Pack"]
    shown = await get(client, "run", id="pack-1")
    subject = {"id": "pack-1", "version": shown["version"]}
    forked = (await client.post("/api/fork", json={**subject, "at": "Count"})).json()["forked"]
    assert (await get(client, "run", id=forked))["forked_from"] == "pack-1"
    again = (await client.post("/api/retry_at", json={**subject, "at": "Count"})).json()["run"]
    assert (again["status"], again["node"]) == ("queued", "Count")
    unknown = await client.post("/api/fork", json={**subject, "version": again["version"], "at": "Cont"})
    assert (unknown.status_code, "did you mean 'Count'" in unknown.json()["error"]) == (400, True)
    other = await browse(inspector(storage, token=TOKEN, allow_write=True))
    refused = await other.post("/api/fork", json={**subject, "version": again["version"], "at": "Count"})
    assert (refused.status_code, "start it with the file of your flows" in refused.json()["error"]) == (400, True)


UNKNOWN: list[tuple[str, dict[str, str], int]] = [
    ("record", {"bot": "shop", "key": "(1,1)"}, 404),
    ("record", {}, 400),
    ("records", {"bot": "nobody"}, 404),
    ("records", {"user": "x"}, 400),
    ("records", {"field": "city"}, 400),
    ("runs", {"status": "odd"}, 400),
    ("runs", {"sort": "luck"}, 400),
    ("queue", {"name": "nothing"}, 404),
    ("run", {"id": "nothing"}, 404),
    ("nothing", {}, 404),
]


async def test_a_request_for_an_unknown_thing_gets_a_reason(storage: Storage, browse: Browser) -> None:
    client = await browse(app_of(storage))
    for name, params, status in UNKNOWN:
        answer = await client.get(f"/api/{name}", params=params)
        assert (name, params, answer.status_code) == (name, params, status)
        assert answer.json()["error"]


@pytest.mark.every_backend
async def test_a_record_is_edited_and_the_edit_is_logged(
    storage: Storage, browse: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    client = await browse(app_of(storage, allow_write=True, name="alice"))
    caplog.set_level(logging.INFO, "stepwell.operate")
    shown = await get(client, "record", bot="shop", key="(44,44)")
    subject = {"bot": "shop", "key": "(44,44)"}
    wrong = await client.post(
        "/api/set_state", json={**subject, "flow": "order", "state": "odd", "version": shown["version"]}
    )
    assert (wrong.status_code, "it has item, address, paid" in wrong.json()["error"]) == (400, True)
    moved = await client.post(
        "/api/set_state", json={**subject, "flow": "order", "state": "item", "version": shown["version"]}
    )
    assert (moved.status_code, moved.json()["record"]["state"]) == (200, "item")
    version = moved.json()["record"]["version"]
    value = '{"$date": "2026-01-31"}'
    changed = await client.post("/api/set_field", json={**subject, "field": "day", "value": value, "version": version})
    assert changed.json()["record"]["data"]["day"] == {"$date": "2026-01-31"}
    version = changed.json()["record"]["version"]
    changed = await client.post("/api/remove_field", json={**subject, "field": "day", "version": version})
    assert "day" not in changed.json()["record"]["data"]
    version = changed.json()["record"]["version"]
    assert (await client.post("/api/clear", json={**subject, "version": version})).status_code == 200
    assert (await client.get("/api/record", params=subject)).status_code == 404
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "alice changed state to item of shop (44,44)",
        "alice changed field day of shop (44,44)",
        "alice changed field day of shop (44,44)",
        "alice cleared shop (44,44)",
    ]


async def test_the_second_of_two_edits_is_refused_and_shows_the_record(storage: Storage, browse: Browser) -> None:
    client = await browse(app_of(storage, allow_write=True))
    shown = await get(client, "record", bot="shop", key="(42,42)")
    subject = {"bot": "shop", "key": "(42,42)", "version": shown["version"]}
    first = await client.post("/api/set_field", json={**subject, "field": "name", "value": '"Ann"'})
    assert first.status_code == 200
    for name, more in (
        ("set_state", {"flow": "order", "state": "paid"}),
        ("set_field", {"field": "name", "value": '"Bea"'}),
        ("remove_field", {"field": "name"}),
        ("clear", {}),
        ("forget", {}),
    ):
        second = await client.post(f"/api/{name}", json={**subject, **more})
        assert (second.status_code, second.json()["conflict"]) == (409, True)
        assert second.json()["record"]["data"]["name"] == "Ann"
    now = await get(client, "record", bot="shop", key="(42,42)")
    assert now["version"] == first.json()["record"]["version"]


async def test_runs_are_answered_retried_and_cancelled(storage: Storage, browse: Browser) -> None:
    client = await browse(app_of(storage, allow_write=True))
    parked = await get(client, "run", id="approve-1")
    subject = {"id": "approve-1", "version": parked["version"]}
    answer = {**subject, "wait": parked["waits"][0]["id"], "value": '{"ok": true}'}
    answered = await client.post("/api/answer", json=answer)
    assert (answered.status_code, parked["answered"], answered.json()["run"]["answered"]) == (200, False, True)
    assert answered.json()["outcome"] == "accepted"
    again = await client.post("/api/answer", json=answer)
    assert (again.status_code, again.json()["outcome"], again.json()["run"]["flow_id"]) == (
        200,
        "answered before",
        "approve-1",
    )
    foreign = await client.post("/api/answer", json={**answer, "id": "charge-1"})
    assert (foreign.status_code, "is no wait of run" in foreign.json()["error"]) == (400, True)
    failed = await get(client, "run", id="charge-1")
    subject = {"id": "charge-1", "version": failed["version"]}
    retried = await client.post("/api/retry", json=subject)
    assert (retried.status_code, retried.json()["run"]["status"]) == (200, "queued")
    assert (await client.post("/api/retry", json=subject)).status_code == 409
    assert (await client.post("/api/cancel", json=subject)).status_code == 409
    subject["version"] = retried.json()["run"]["version"]
    paused = await client.post("/api/pause", json=subject)
    assert paused.json()["run"]["status"] == "paused"
    subject["version"] = paused.json()["run"]["version"]
    retried = await client.post("/api/retry", json=subject)
    assert (retried.status_code, retried.json()["run"]["status"] != "paused") == (200, True)
    subject["version"] = retried.json()["run"]["version"]
    cancelled = await client.post("/api/cancel", json={**subject, "reason": "paid twice"})
    assert (cancelled.json()["run"]["status"], cancelled.json()["run"]["reason"]) == ("cancelled", "paid twice")
    assert (await show_run(storage, "charge-1")).status == "cancelled"
