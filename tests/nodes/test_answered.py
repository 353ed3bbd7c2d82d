"""What an answer to a question of a run says about itself, and signals that no node waits for."""

from __future__ import annotations

import asyncio

import pytest

from stepwell import Storage
from stepwell.errors import InvalidOption, RunFinished, UsageError
from stepwell.nodes import Answered, Node, NodeFlow, RunHandle, Wait, linear, parallel
from stepwell.testing import Clock
from tests.backends import Backend
from tests.nodes.test_cancel import begun
from tests.nodes.test_mail import Gate
from tests.nodes.test_wait import parked
from tests.until import until

pytestmark = pytest.mark.every_backend


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def storage(backend: Backend, clock: Clock) -> Storage:
    storage = backend.storage(clock=clock)
    await storage.open()
    return storage


async def test_only_the_first_of_two_answers_is_accepted_while_the_run_is_parked_and_after_its_end(
    storage: Storage,
) -> None:
    flow = linear(Wait("x"), storage=storage, keep=True)
    wait = await parked(flow.run(flow_id="r"))
    assert await flow.answer(wait.id, 1) is Answered.ACCEPTED
    assert await flow.answer(wait.id, 2) is Answered.ANSWERED_BEFORE
    assert await RunHandle("r", flow).answer(3) is Answered.ANSWERED_BEFORE
    assert await flow.resume("r") == {"x": 1}
    assert await flow.answer(wait.id, 4) is Answered.ANSWERED_BEFORE
    assert [bool(each) for each in Answered] == [True, False, False]


async def test_one_of_many_answers_at_once_is_accepted_even_while_the_run_is_busy(storage: Storage) -> None:
    gate = Gate("gate")
    flow = linear(parallel(Wait("x"), gate), name="f", storage=storage, keep=True)
    running = await begun(flow, gate)
    wait = (await until(lambda: flow.status("r"), lambda run: run.waits)).waits[0]
    answers = await asyncio.gather(*(flow.answer(wait.id, number) for number in range(8)))
    assert sorted(answers) == [Answered.ACCEPTED, *[Answered.ANSWERED_BEFORE] * 7]
    gate.opened.set()
    assert (await running)["x"] == answers.index(Answered.ACCEPTED)


async def test_an_answer_after_the_timeout_is_too_late_before_and_after_the_run_has_gone_on(
    storage: Storage, clock: Clock
) -> None:
    first = Wait("x", timeout=60)
    flow = NodeFlow(start=first, name="f", storage=storage, keep=True)
    flow.connect(first, Node(name="got", inline=True)).connect(first, second := Wait("y"), "timeout")
    wait = await parked(flow.run(flow_id="r"))
    clock.advance(61)
    assert await flow.answer(wait.id, 1) is Answered.TOO_LATE
    later = await parked(flow.resume("r"))
    assert later.node == second.name
    assert await flow.answer(wait.id, 1) is Answered.TOO_LATE
    assert await flow.answer(later.id, 2, run=True) == {"y": 2}
    assert await flow.answer(wait.id, 1) is Answered.TOO_LATE
    assert await flow.answer(later.id, 1) is Answered.ANSWERED_BEFORE


async def test_an_answer_to_an_unknown_question_or_to_a_run_that_is_gone_raises(storage: Storage) -> None:
    flow = linear(Wait("x"), storage=storage)
    wait = await parked(flow.run(flow_id="r"))
    with pytest.raises(UsageError, match="never had the wait"):
        await flow.answer(wait.id.replace("/x/1", "/x/2"), 1)
    assert await flow.answer(wait.id, 1, run=True) == {"x": 1}
    with pytest.raises(RunFinished):
        await flow.answer(wait.id, 1)


async def test_a_signal_that_no_node_waits_for_is_refused_with_the_nearest_name_and_not_stored(
    storage: Storage,
) -> None:
    flow = linear(Wait("x", signal="payment"), linear(Wait("y", signal="parcel"), name="inner"), storage=storage)
    await parked(flow.run(flow_id="r"))
    with pytest.raises(InvalidOption, match=r"waits for the signal 'paymnet'; did you mean 'payment'\?"):
        await flow.signal("r", "paymnet", 1)
    with pytest.raises(InvalidOption, match="its signals are 'parcel', 'payment'"):
        await flow.signal("r", "zzz", 1)
    await flow.signal("r", "parcel", 2)
    await flow.signal("r", "payment", 1)
    assert await flow.resume("r") == {"x": 1, "y": 2}
