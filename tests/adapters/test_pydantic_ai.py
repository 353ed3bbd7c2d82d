"""StepwellDurability: agents of pydantic-ai in durable runs, with models that answer without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from stepwell.adapters.pydantic_ai import StepwellDurability
from stepwell.errors import RunStuck, TooLarge, UsageError
from stepwell.nodes import Node, NodeFlow, effect, linear, worker
from stepwell.record import Limits
from stepwell.storage import MemoryStorage
from tests.backends import Backend
from tests.until import forever, until


class Clerk:
    """An agent that asks two tools, and answers; each call is counted, and one of them may fail."""

    def __init__(self, metadata: dict[str, Any] | None = None) -> None:
        self.calls: list[str] = []
        #: What the tool ``ship`` has returned to the model.
        self.told: list[str] = []
        self.broken = True
        self.repairs_itself = False
        self.ship: Callable[[str], Any] | None = None
        agent: Agent[None, str] = Agent(FunctionModel(self.model), name="clerk", capabilities=[StepwellDurability()])

        @agent.tool_plain
        def price(item: str) -> int:
            self.calls.append(f"price {item}")
            return len(item)

        @agent.tool_plain(metadata=metadata)
        async def ship(item: str) -> str:
            if self.ship is not None:
                return await self.ship(item)
            self.calls.append(f"ship {item}")
            if self.broken:
                self.broken = not self.repairs_itself
                raise OSError("the shop is down")
            return "sent"

        self.agent = agent

    async def model(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        self.calls.append(f"model {turn}")
        if turn == 0:
            return ModelResponse([ToolCallPart("price", {"item": name}) for name in ("tea", "bread")])
        if turn == 1:
            return ModelResponse([ToolCallPart("ship", {"item": "tea"})])
        self.told = parts(messages[-1:], ToolReturnPart)
        return ModelResponse([TextPart("done")])

    def flow(self, storage: Any, **options: Any) -> Any:
        return linear(self.node(**options), name="shop", storage=storage)

    def node(self, **options: Any) -> Any:
        clerk = self

        class Ask(Node):
            async def exec(self, prep_res: Any) -> str:
                return (await clerk.agent.run("Sell.")).output

            def post(self, shared: Any, prep_res: Any, exec_res: str) -> None:
                shared["answer"] = exec_res

        return Ask(name="ask", **options)


@pytest.mark.every_backend
async def test_a_resumed_agent_repeats_no_operation_that_has_ended(backend: Backend) -> None:
    clerk = Clerk()
    flow = clerk.flow(backend.storage())
    with pytest.raises(OSError, match="down"):
        await flow.run({}, flow_id="run")
    assert sorted(clerk.calls) == ["model 0", "model 1", "price bread", "price tea", "ship tea"]
    clerk.calls.clear()
    clerk.broken = False
    assert (await flow.resume("run"))["answer"] == "done"
    assert clerk.calls == ["ship tea", "model 2"]


async def test_a_retried_node_continues_too(backend: Backend) -> None:
    clerk = Clerk()
    clerk.repairs_itself = True
    assert (await clerk.flow(backend.storage(), max_retries=2).run({}, flow_id="run"))["answer"] == "done"
    assert clerk.calls.count("ship tea") == 2
    assert [call for call in clerk.calls if call.startswith("model")] == ["model 0", "model 1", "model 2"]


@pytest.mark.every_backend
async def test_a_tool_that_was_interrupted_does_not_run_again_until_somebody_says_what_happened(
    backend: Backend,
) -> None:
    clerk, begun = Clerk(), asyncio.Event()

    async def hang(item: str) -> str:
        clerk.calls.append(f"ship {item}")
        begun.set()
        await forever()
        return ""

    clerk.ship = hang
    storage = backend.storage()
    flow = clerk.flow(storage)
    run = asyncio.ensure_future(flow.run({}, flow_id="run"))
    await begun.wait()
    # The work of a process that dies: nothing of it is stored any more.
    run.cancel()
    await asyncio.wait({run})
    clerk.calls.clear()
    with pytest.raises(RunStuck, match="'ship'"):
        await flow.resume("run")
    assert clerk.calls == []
    await flow.complete("run", "ask", result="sent by hand")
    async with worker([flow], storage=storage):
        await until(lambda: flow.status("run"), lambda run: run.status != "stuck")
        await until(lambda: clerk.calls, lambda calls: calls == ["model 2"])
    assert clerk.told == ["sent by hand"]


async def test_a_flow_may_go_on_with_an_edge_after_an_interrupted_tool(backend: Backend) -> None:
    clerk, begun = Clerk(), asyncio.Event()

    async def hang(item: str) -> str:
        begun.set()
        await forever()
        return ""

    class Look(Node):
        def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
            shared["answer"] = "look"

    clerk.ship = hang
    ask = clerk.node()
    ask - "unknown" >> Look(name="look")
    flow = NodeFlow(ask, name="shop", storage=backend.storage())
    run = asyncio.ensure_future(flow.run({}, flow_id="run"))
    await begun.wait()
    run.cancel()
    await asyncio.wait({run})
    assert (await flow.resume("run"))["answer"] == "look"


async def test_a_tool_that_is_safe_runs_again(backend: Backend) -> None:
    clerk, begun = Clerk(metadata={"replay": "safe"}), asyncio.Event()

    async def hang(item: str) -> str:
        if not begun.is_set():
            begun.set()
            await forever()
        return "sent"

    clerk.ship = hang
    flow = clerk.flow(backend.storage())
    run = asyncio.ensure_future(flow.run({}, flow_id="run"))
    await begun.wait()
    run.cancel()
    await asyncio.wait({run})
    assert (await flow.resume("run"))["answer"] == "done" and clerk.told == ["sent"]


async def test_an_effect_in_a_safe_tool_is_found_although_an_earlier_tool_is_left_out(backend: Backend) -> None:
    charged: list[str] = []
    broken = True

    @effect
    async def charge(item: str) -> str:
        charged.append(item)
        return f"receipt of {item}"

    async def look(item: str) -> str:
        receipt = await charge(item)
        if broken and item == "gold":
            raise OSError("the shop is down")
        return receipt

    seller = Seller(look, metadata={"replay": "safe"})

    async def ask(prep_res: Any) -> str:
        return (await seller.agent.run("tea gold")).output

    flow = flow_of(ask, backend.storage())
    with pytest.raises(OSError, match="down"):
        await flow.run({}, flow_id="run")
    broken = False
    assert (await flow.resume("run"))["answer"] == "receipt of tea receipt of gold"
    assert charged == ["tea", "gold"]


async def test_a_tool_whose_replay_does_not_exist_is_refused(backend: Backend) -> None:
    with pytest.raises(UsageError, match="replay="):
        await Clerk(metadata={"replay": "once"}).flow(backend.storage()).run({}, flow_id="run")


async def test_two_runs_do_not_share_results(backend: Backend) -> None:
    clerk = Clerk()
    clerk.broken = False
    flow = clerk.flow(backend.storage())
    for number in range(2):
        assert (await flow.run({}, flow_id=f"run {number}"))["answer"] == "done"
    assert clerk.calls.count("model 0") == 2


async def test_outside_a_durable_run_nothing_is_stored() -> None:
    clerk = Clerk()
    clerk.broken = False
    for _ in range(2):
        assert (await clerk.agent.run("Sell.")).output == "done"
    assert (await clerk.flow(None).run({}))["answer"] == "done"
    assert clerk.calls.count("model 0") == 3


async def test_a_run_with_the_id_of_an_earlier_one_asks_again(backend: Backend) -> None:
    clerk = Clerk()
    clerk.broken = False
    flow = clerk.flow(backend.storage())
    await flow.run({}, flow_id="order")
    asked = list(clerk.calls)
    await flow.run({}, flow_id="order")
    # The agent calls its two price tools side by side, so their order differs between runs.
    assert sorted(clerk.calls[: len(asked)]) == sorted(clerk.calls[len(asked) :])


def parts(messages: list[ModelMessage], kind: Any) -> list[Any]:
    return [part.content for message in messages for part in message.parts if isinstance(part, kind)]


class Seller:
    """An agent that looks each word of its prompt up, one after the other, and repeats what it found."""

    def __init__(self, look: Callable[[str], Any], name: str = "seller", metadata: Any = None) -> None:
        self.asked: list[str] = []

        async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            words, found = parts(messages, UserPromptPart)[0].split(), parts(messages, ToolReturnPart)
            self.asked.append(f"{' '.join(words)} {len(found)}")
            if len(found) < len(words):
                return ModelResponse([ToolCallPart("look", {"item": words[len(found)]})])
            return ModelResponse([TextPart(" ".join(map(str, found)))])

        self.agent: Agent[None, str] = Agent(FunctionModel(model), name=name, capabilities=[StepwellDurability()])
        self.agent.tool_plain(look, name="look", metadata=metadata)


def upper(item: str) -> str:
    return item.upper()


def flow_of(exec_: Any, storage: Any, prep: Any = None, **options: Any) -> Any:
    class Ask(Node):
        async def prep(self, shared: Any) -> Any:
            return None if prep is None else await prep()

        async def exec(self, prep_res: Any) -> Any:
            return await exec_(prep_res)

        def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
            shared["answer"] = exec_res

    return linear(Ask(name="ask", **options), name="shop", storage=storage)


async def test_an_agent_inside_a_tool_gets_its_own_results(backend: Backend) -> None:
    broken = True
    expert = Seller(lambda item: f"price of {item}", name="expert")

    async def look(item: str) -> str:
        found = (await expert.agent.run(item)).output
        if broken and item == "gold":
            raise OSError("the shop is down")
        return found

    seller = Seller(look)

    async def ask(prep_res: Any) -> str:
        return (await seller.agent.run("tea gold")).output

    flow = flow_of(ask, backend.storage())
    with pytest.raises(OSError, match="down"):
        await flow.run({}, flow_id="run")
    broken = False
    assert (await flow.resume("run"))["answer"] == "price of tea price of gold"
    assert expert.asked == ["tea 0", "tea 1", "gold 0", "gold 1"]
    assert seller.asked == ["tea gold 0", "tea gold 1", "tea gold 2"]


async def test_a_retry_does_not_take_the_results_of_prep(backend: Backend) -> None:
    seller = Seller(upper)
    attempts = 0

    async def prepare() -> str:
        return (await seller.agent.run("prep")).output

    async def ask(prep_res: Any) -> list[str]:
        nonlocal attempts
        attempts += 1
        found = (await seller.agent.run("exec")).output
        if attempts == 1:
            raise OSError("the shop is down")
        return [prep_res, found]

    flow = flow_of(ask, backend.storage(), prepare, max_retries=2)
    assert (await flow.run({}, flow_id="run"))["answer"] == ["PREP", "EXEC"]
    assert seller.asked == ["prep 0", "prep 1", "exec 0", "exec 1"]


async def test_concurrent_runs_of_an_agent_get_their_own_results(backend: Backend) -> None:
    broken, order = True, ["slow", "quick"]

    async def look(item: str) -> str:
        await asyncio.sleep(0.05 if item == "slow" else 0)
        return item.upper()

    seller = Seller(look)

    async def ask(prep_res: Any) -> dict[str, str]:
        found = await asyncio.gather(*(seller.agent.run(each) for each in order))
        if broken:
            raise OSError("the shop is down")
        return {word: each.output for word, each in zip(order, found, strict=True)}

    flow = flow_of(ask, backend.storage())
    with pytest.raises(OSError, match="down"):
        await flow.run({}, flow_id="run")
    broken = False
    order.reverse()
    assert (await flow.resume("run"))["answer"] == {"slow": "SLOW", "quick": "QUICK"}
    assert sorted(seller.asked) == ["quick 0", "quick 1", "slow 0", "slow 1"]


@pytest.mark.every_backend
async def test_a_large_result_is_stored_in_pieces(backend: Backend) -> None:
    calls, broken = 0, True
    text = '"\\ä' * 700_000

    def look(item: str) -> str:
        nonlocal calls
        calls += 1
        return text

    seller = Seller(look)

    async def ask(prep_res: Any) -> int:
        found = (await seller.agent.run("report")).output
        if broken:
            raise OSError("the shop is down")
        assert found == text
        return len(found)

    flow = flow_of(ask, backend.storage())
    with pytest.raises(OSError, match="down"):
        await flow.run({}, flow_id="run")
    broken = False
    assert (await flow.resume("run"))["answer"] == len(text)
    assert calls == 1


async def test_a_result_that_is_too_large_for_the_log_names_its_operation() -> None:
    seller = Seller(lambda item: "x" * 50_000)

    async def ask(prep_res: Any) -> str:
        return (await seller.agent.run("report")).output

    with pytest.raises(TooLarge) as caught:
        await flow_of(ask, MemoryStorage(limits=Limits(item=20_000, run=30_000))).run({}, flow_id="run")
    assert any("look" in note and "let the tool return less" in note for note in caught.value.__notes__)


async def test_an_agent_in_a_def_node(backend: Backend) -> None:
    seller, broken = Seller(upper), True

    class Ask(Node):
        def exec(self, prep_res: Any) -> str:
            try:
                found = seller.agent.run_sync("tea").output
            finally:
                # pydantic-ai leaves it open in the thread.
                asyncio.get_event_loop().close()
            if broken:
                raise OSError("the shop is down")
            return found

        def post(self, shared: Any, prep_res: Any, exec_res: str) -> None:
            shared["answer"] = exec_res

    flow = linear(Ask, name="shop", storage=backend.storage())
    with pytest.raises(OSError, match="down"):
        await flow.run({}, flow_id="run")
    broken = False
    assert (await flow.resume("run"))["answer"] == "TEA"
    assert seller.asked == ["tea 0", "tea 1"]
