"""Effects: calls that must not run twice, in nodes of durable runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Storage
from stepwell.errors import InvalidOption, KeptError, RunStuck, Unstorable, UsageError
from stepwell.nodes import BatchNode, Node, NodeFlow, RunHandle, effect, linear, worker
from stepwell.nodes.control import ending
from stepwell.nodes.run.journal import Journal
from tests.backends import Backend


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Service:
    """Counts its charges, and can keep a caller waiting."""

    def __init__(self) -> None:
        self.charged: list[Any] = []
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()
        self.errors: list[Exception] = []

    async def charge(self, order: Any) -> str:
        self.charged.append(order)
        self.began.set()
        await self.may_end.wait()
        if self.errors:
            raise self.errors.pop(0)
        return f"receipt {order}"


class Pay(Node):
    """Charges each of its orders, one after the other."""

    def __init__(
        self, service: Service, orders: list[Any], fails: list[Exception] | None = None, **options: Any
    ) -> None:
        super().__init__(name="pay", **options)
        self.service, self.orders, self.fails = service, orders, [] if fails is None else fails

        @effect
        async def charge(order: Any) -> str:
            return await service.charge(order)

        self.charge = charge

    async def exec(self, prep_res: Any) -> list[str]:
        receipts = [await self.charge(order) for order in self.orders]
        if self.fails:
            raise self.fails.pop(0)
        return receipts

    def post(self, shared: Any, prep_res: Any, exec_res: list[str]) -> None:
        shared["receipts"] = exec_res


class Never(Node):
    """A node that must not run twice."""

    replay = "never"

    def __init__(self, service: Service, **options: Any) -> None:
        super().__init__(name="pay", **options)
        self.service = service

    async def exec(self, prep_res: Any) -> list[str]:
        return [await self.service.charge("a")]

    def post(self, shared: Any, prep_res: Any, exec_res: list[str]) -> None:
        shared["receipts"] = exec_res


async def killed(flow: NodeFlow, service: Service, monkeypatch: pytest.MonkeyPatch, flow_id: str = "r") -> None:
    """Run until the service is called, and end the runner as a kill does: it writes nothing more."""

    async def nothing(journal: Any, **options: Any) -> None:
        pass

    service.may_end.clear()
    with monkeypatch.context() as patch:
        patch.setattr(ending, "_interrupt", nothing)
        running = asyncio.create_task(flow.run(flow_id=flow_id))
        await service.began.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    service.may_end.set()


def paying(kind: str, service: Service, **options: Any) -> Node:
    return Never(service, **options) if kind == "node" else Pay(service, ["a"], **options)


async def test_outside_a_durable_run_an_effect_just_runs() -> None:
    @effect
    async def double(number: int) -> int:
        return 2 * number

    @effect(replay="safe")
    def half(number: int) -> int:
        return number // 2

    assert (await double(2), half(4)) == (4, 2)
    service = Service()
    assert await linear(Pay(service, ["a"])).run({}) == {"receipts": ["receipt a"]}
    assert await linear(Never(service)).run({}) == {"receipts": ["receipt a"]}


async def test_an_effect_that_has_returned_is_not_called_again_by_another_attempt_of_its_node(storage: Storage) -> None:
    service = Service()
    pay = Pay(service, ["a", "b", "a"], fails=[OSError("later")], max_retries=2)
    assert await linear(pay).run({}, storage=storage) == {"receipts": ["receipt a", "receipt b", "receipt a"]}
    assert service.charged == ["a", "b", "a"]


async def test_an_effect_that_has_returned_is_not_called_again_when_its_run_is_resumed(storage: Storage) -> None:
    service = Service()
    pay = Pay(service, ["a", "b"], fails=[OSError("later")])
    flow = linear(pay, name="f", storage=storage)
    with pytest.raises(OSError, match="later"):
        await flow.run({}, flow_id="r")
    assert await flow.resume("r") == {"receipts": ["receipt a", "receipt b"]}
    assert service.charged == ["a", "b"]


async def test_each_visit_of_a_node_has_its_own_effects(storage: Storage) -> None:
    service = Service()

    class Again(Pay):
        def post(self, shared: Any, prep_res: Any, exec_res: Any) -> str | None:
            shared["rounds"] = shared.get("rounds", 0) + 1
            return "again" if shared["rounds"] < 3 else None

    pay = Again(service, ["a"])
    pay - "again" >> pay
    await NodeFlow(pay, storage=storage).run({})
    assert service.charged == ["a"] * 3


@pytest.mark.every_backend
@pytest.mark.parametrize("kind", ["node", "effect"])
async def test_a_run_whose_runner_died_within_an_effect_is_stuck_and_does_not_run_it_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    service = Service()
    flow = linear(paying(kind, service), name="f", storage=storage)
    await killed(flow, service, monkeypatch)
    for _ in range(2):
        with pytest.raises(RunStuck, match=r"the outcome of '.*' in r/pay/1 is unknown: say what it was with"):
            await flow.resume("r")
    assert service.charged == ["a"]
    assert (await flow.status("r")).status == "stuck"


async def test_a_run_that_is_stuck_in_an_effect_names_the_calls_that_settle_it(storage: Storage) -> None:
    service = Service()
    service.may_end.clear()
    flow = linear(Pay(service, ["a"], timeout=0.05), name="f", storage=storage)
    with pytest.raises(RunStuck) as stuck:
        await flow.run({}, flow_id="order 7")
    assert str(stuck.value).endswith(
        "is unknown: say what it was with flow.complete('order 7', 'pay', result=...) or "
        "stepwell complete 'order 7' pay --result ..., or let it run again with flow.retry('order 7')"
    )


@pytest.mark.every_backend
@pytest.mark.parametrize("kind", ["node", "effect"])
async def test_an_operator_says_what_an_interrupted_effect_has_returned(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    service = Service()
    flow = linear(paying(kind, service), name="f", storage=storage, keep=True)
    await killed(flow, service, monkeypatch)
    with pytest.raises(RunStuck):
        await flow.resume("r")
    result = ["by hand"] if kind == "node" else "by hand"
    await flow.complete("r", "pay", result=result)
    async with worker([flow]):
        assert await RunHandle("r", flow).result(timeout=10) == {"receipts": ["by hand"]}
    assert service.charged == ["a"]


@pytest.mark.parametrize("kind", ["node", "effect"])
async def test_a_retry_runs_an_interrupted_effect_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    service = Service()
    flow = linear(paying(kind, service), name="f", storage=storage)
    await killed(flow, service, monkeypatch)
    with pytest.raises(RunStuck):
        await flow.resume("r")
    assert await flow.retry("r") == 1
    assert await flow.resume("r") == {"receipts": ["receipt a"]}
    assert service.charged == ["a", "a"]


@pytest.mark.parametrize("kind", ["node", "effect"])
async def test_the_edge_unknown_settles_an_interrupted_effect(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    service = Service()

    class Ask(Node):
        def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
            shared["asked"] = True

    pay = paying(kind, service, max_retries=3)
    pay - "unknown" >> Ask(name="ask")
    pay - "error" >> Node(name="wrong", inline=True)
    flow = NodeFlow(pay, name="f", storage=storage)
    await killed(flow, service, monkeypatch)
    assert await flow.resume("r") == {"asked": True}
    assert service.charged == ["a"]


async def test_an_effect_that_is_safe_runs_again(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()

    class Safe(Pay):
        def __init__(self) -> None:
            super().__init__(service, ["a"])

            @effect(replay="safe")
            async def charge(order: Any) -> str:
                return await service.charge(order)

            self.charge = charge

    flow = linear(Safe(), name="f", storage=storage)
    await killed(flow, service, monkeypatch)
    assert await flow.resume("r") == {"receipts": ["receipt a"]}
    assert service.charged == ["a", "a"]


@pytest.mark.parametrize("kind", ["node", "effect"])
async def test_an_effect_that_raises_has_ended_and_the_next_attempt_calls_it_again(storage: Storage, kind: str) -> None:
    service = Service()
    service.errors = [OSError("refused")]
    flow = linear(paying(kind, service, max_retries=2), name="f", storage=storage)
    assert await flow.run({}) == {"receipts": ["receipt a"]}
    assert service.charged == ["a", "a"]


@pytest.mark.parametrize("kind", ["node", "effect"])
async def test_a_failed_run_whose_effect_has_raised_calls_it_again_when_it_is_resumed(
    storage: Storage, kind: str
) -> None:
    service = Service()
    service.errors = [OSError("refused")]
    flow = linear(paying(kind, service), name="f", storage=storage)
    with pytest.raises(OSError, match="refused"):
        await flow.run({}, flow_id="r")
    assert await flow.resume("r") == {"receipts": ["receipt a"]}
    assert service.charged == ["a", "a"]


@pytest.mark.parametrize("kind", ["node", "effect"])
async def test_an_effect_that_raised_before_a_crash_raises_its_stored_error(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    service = Service()
    service.errors = [OSError("refused")]
    flow = linear(paying(kind, service), name="f", storage=storage)

    async def killed(journal: Journal, error: Exception) -> list[str]:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "fail", killed)
        with pytest.raises(OSError, match="refused"):
            await flow.run({}, flow_id="r")
    with pytest.raises(KeptError, match="refused"):
        await flow.resume("r")
    assert service.charged == ["a"]
    assert await flow.resume("r") == {"receipts": ["receipt a"]}


async def test_the_outcome_of_an_effect_whose_result_cannot_be_stored_is_unknown(storage: Storage) -> None:
    service = Service()

    @effect
    async def charge(order: str) -> object:
        await service.charge(order)
        return object()

    class Wrong(Node):
        async def exec(self, prep_res: Any) -> object:
            return await charge("a")

    flow = linear(Wrong(name="wrong"), name="f", storage=storage)
    with pytest.raises(Unstorable):
        await flow.run({}, flow_id="r")
    with pytest.raises(RunStuck, match="is unknown"):
        await flow.resume("r")
    assert service.charged == ["a"]


async def test_the_timeout_of_a_node_that_must_not_run_twice_is_an_unknown_outcome(storage: Storage) -> None:
    service = Service()
    service.may_end.clear()
    flow = linear(Never(service, timeout=0.05, max_retries=3), name="f", storage=storage)
    with pytest.raises(RunStuck, match="the outcome of 'pay' in r/pay/1 is unknown"):
        await flow.run({}, flow_id="r")
    assert service.charged == ["a"]


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("kind", ["node", "effect"])
async def test_an_effect_that_the_timeout_of_its_node_has_interrupted_has_an_unknown_outcome(
    storage: Storage, kind: str, attempts: int
) -> None:
    service, undone = Service(), []
    service.may_end.clear()

    class Reserve(Node):
        def undo(self, shared: Any, result: Any) -> None:
            undone.append(result)

    flow = linear(Reserve(), paying(kind, service, timeout=0.05, max_retries=attempts), name="f", storage=storage)
    with pytest.raises(RunStuck, match=r"the outcome of '.*' in r/pay/1 is unknown"):
        await flow.run({}, flow_id="r")
    assert (await flow.status("r")).status == "stuck"
    assert (service.charged, undone) == (["a"], [])


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("kind", ["node", "effect"])
async def test_the_edge_unknown_and_no_other_is_for_an_effect_that_a_timeout_has_interrupted(
    storage: Storage, kind: str, attempts: int
) -> None:
    service = Service()
    service.may_end.clear()
    pay = paying(kind, service, timeout=0.05, max_retries=attempts)
    pay - "unknown" >> Node(name="ask")
    pay - "error" >> Node(name="wrong")
    flow = NodeFlow(pay, name="f", storage=storage, keep=True)
    await flow.run({}, flow_id="r")
    assert [(each.node, each.action) for each in await flow.history("r")] == [
        ("pay", "unknown"),
        ("ask", "default"),
    ]


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_timeout_of_the_programs_own_that_interrupts_an_effect_is_an_unknown_outcome(
    storage: Storage, attempts: int
) -> None:
    service = Service()
    service.may_end.clear()

    class Impatient(Pay):
        async def exec(self, prep_res: Any) -> list[str]:
            async with asyncio.timeout(0.05):
                return await super().exec(prep_res)

        def exec_fallback(self, prep_res: Any, error: Exception) -> list[str]:
            return ["not charged"]

    flow = linear(Impatient(service, ["a"], max_retries=attempts), name="f", storage=storage)
    with pytest.raises(RunStuck, match="in r/pay/1 is unknown"):
        await flow.run({}, flow_id="r")
    assert service.charged == ["a"]


async def test_an_effect_that_its_task_group_has_cancelled_is_an_unknown_outcome(storage: Storage) -> None:
    service = Service()
    service.may_end.clear()

    class Both(Pay):
        async def exec(self, prep_res: Any) -> list[str]:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.charge("a"))
                group.create_task(self.fail())
            return []

        async def fail(self) -> None:
            await service.began.wait()
            raise OSError("no stock")

    with pytest.raises(RunStuck, match="in r/pay/1 is unknown"):
        await linear(Both(service, []), name="f", storage=storage).run({}, flow_id="r")


async def test_the_item_of_a_batch_whose_effect_a_timeout_has_interrupted_has_an_unknown_outcome(
    storage: Storage,
) -> None:
    service = Service()
    service.may_end.clear()

    @effect
    async def charge(order: str) -> str:
        return await service.charge(order)

    class Pays(BatchNode):
        def prep(self, shared: Any) -> list[str]:
            return ["a", "b"]

        async def exec(self, order: str) -> str:
            return await charge(order) if order == "b" else order

    with pytest.raises(RunStuck, match=r"in r/pays/1/1 is unknown.*result=\.\.\., item=1\).*r pays --item 1 --result"):
        await linear(Pays(name="pays", timeout=0.05), name="f", storage=storage).run({}, flow_id="r")
    assert service.charged == ["b"]


async def test_each_item_of_a_batch_has_its_own_effects(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()

    class Pays(BatchNode):
        def prep(self, shared: Any) -> list[str]:
            return ["a", "b", "c"]

        async def exec(self, order: str) -> str:
            return await charge(order)

        def post(self, shared: Any, prep_res: Any, exec_res: list[str]) -> None:
            shared["receipts"] = exec_res

    @effect
    async def charge(order: str) -> str:
        return await service.charge(order)

    flow = linear(Pays(name="pays"), name="f", storage=storage, keep=True)
    await killed(flow, service, monkeypatch)
    with pytest.raises(RunStuck, match="in r/pays/1/0 is unknown"):
        await flow.resume("r")
    with pytest.raises(
        UsageError, match=r"no call at node 'pays', item 1, without an outcome; unknown are node 'pays'"
    ):
        await flow.complete("r", "pays", item=1)
    await flow.complete("r", "pays", item=0, result="by hand")
    assert await flow.resume("r") == {"receipts": ["by hand", "receipt b", "receipt c"]}
    assert service.charged == ["a", "b", "c"]


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_batch_that_must_not_run_twice_stores_each_item(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, threaded: bool
) -> None:
    calls: list[int] = []

    class Pays(BatchNode):
        def prep(self, shared: Any) -> list[int]:
            return [0, 1, 2, 3]

        if threaded:

            def exec(self, item: int) -> int:
                calls.append(item)
                return item * 10
        else:

            async def exec(self, item: int) -> int:
                calls.append(item)
                return item * 10

        def post(self, shared: Any, prep_res: Any, exec_res: list[int]) -> None:
            shared["results"] = exec_res

    flow = linear(Pays(name="pays", replay="never", concurrency=2), name="f", storage=storage)
    assert await flow.run({}) == {"results": [0, 10, 20, 30]}
    assert sorted(calls) == [0, 1, 2, 3]


async def test_a_def_is_an_effect_in_a_thread_and_refused_in_the_loop(storage: Storage) -> None:
    charged: list[str] = []

    @effect
    def charge(order: str) -> str:
        charged.append(order)
        return f"receipt {order}"

    class InThread(Node):
        fails = [OSError("later")]

        def exec(self, prep_res: Any) -> list[str]:
            receipts = [charge("a"), charge("b")]
            if self.fails:
                raise self.fails.pop()
            return receipts

        def post(self, shared: Any, prep_res: Any, exec_res: list[str]) -> None:
            shared["receipts"] = exec_res

    flow = linear(InThread(max_retries=2), storage=storage)
    assert await flow.run({}) == {"receipts": ["receipt a", "receipt b"]}
    assert charged == ["a", "b"]
    with pytest.raises(UsageError, match=r"the effect '.*charge' is a def, and was called in the event loop"):
        await linear(InThread(inline=True), storage=storage).run({})


async def test_what_an_effect_calls_belongs_to_it(storage: Storage) -> None:
    calls: list[str] = []

    @effect
    async def inner(text: str) -> str:
        calls.append(text)
        return text

    @effect
    async def outer(text: str) -> str:
        return await inner(text)

    class Both(Node):
        fails = [OSError("later")]

        async def exec(self, prep_res: Any) -> None:
            await outer("a")
            await inner("b")
            if self.fails:
                raise self.fails.pop()

    await linear(Both(max_retries=2), storage=storage).run({})
    assert calls == ["a", "b"]


async def test_the_shared_state_of_a_node_that_was_interrupted_is_that_of_its_start(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service()

    class Counts(Pay):
        def prep(self, shared: Any) -> None:
            shared["count"] = shared.get("count", 0) + 1
            shared.setdefault("list", []).append(1)

    flow = linear(Counts(service, ["a"]), name="f", storage=storage)
    await killed(flow, service, monkeypatch)
    with pytest.raises(RunStuck):
        await flow.resume("r")
    await flow.complete("r", "pay", result="by hand")
    assert await flow.resume("r") == {"count": 1, "list": [1], "receipts": ["by hand"]}


async def test_what_cannot_be_stored_is_refused(storage: Storage) -> None:
    service = Service()
    with pytest.raises(TypeError):
        await linear(Pay(service, [object()]), storage=storage).run({})
    assert service.charged == []
    with pytest.raises(InvalidOption, match='replay must be "safe" or "never"'):
        effect(replay="always")  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match='replay must be "safe" or "never"'):
        Node(replay="always")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="@effect takes a function"):
        effect(5)  # type: ignore[call-overload]


async def test_only_a_call_whose_outcome_is_unknown_can_be_completed(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service()
    flow = linear(Pay(service, ["a"]), name="f", storage=storage)
    await killed(flow, service, monkeypatch)
    with pytest.raises(UsageError, match="is running; only a run that is stuck"):
        await flow.complete("r", "pay")
    with pytest.raises(RunStuck):
        await flow.resume("r")
    with pytest.raises(UsageError, match="no call at node 'other' without an outcome; unknown are node 'pay'"):
        await flow.complete("r", "other")
    with pytest.raises(Unstorable):
        await flow.complete("r", "pay", result=object())
    assert (await flow.status("r")).status == "stuck"


async def test_a_worker_calls_on_stuck_for_an_unknown_outcome(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service()
    service.may_end.clear()
    flow = linear(Never(service), name="f", storage=storage)
    handle = await flow.submit()
    async with worker([flow], drain=0):
        await service.began.wait()
    assert (await handle.status()).interrupted
    told: list[str] = []
    async with worker([flow], on_stuck=lambda run: told.append(run.reason or "")):
        with pytest.raises(RunStuck):
            await handle.result(timeout=10)
    assert len(told) == 1
    assert service.charged == ["a"]
