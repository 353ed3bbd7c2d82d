"""Conversations in several processes: one update of a key at a time, each update once (G8), killed at any point."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from tests.backends import Backend
from tests.examples.test_registration import CONVERSATION
from tests.fsm.conftest import message
from tests.reliability.dose import LARGE, dose, seeded
from tests.reliability.workers import Worker, Workers

#: Number of the delivery, user, update id.
Delivery = tuple[int, int, int]
USERS = 10
#: In all but the last both workers are killed.
ROUNDS = 5


async def test_messages_of_one_user_sent_at_once_to_two_workers_are_handled_one_at_a_time(
    shared_backend: Backend, workers: Workers
) -> None:
    url = shared_backend.place()
    deliveries: list[Delivery] = [(number, 42, number + 1) for number in range(20)]
    options = {"at_once": 20, "lease": 30.0, "pause": 0.005}
    both = [workers.start("converse", url, deliveries=deliveries[half::2], **options) for half in range(2)]
    for worker in both:
        await worker.says("done")

    handled = sorted(
        (began, ended, update_id) for worker in both for _, update_id, began, ended in worker.said("handled")
    )
    assert sorted(update_id for _, _, update_id in handled) == list(range(1, 21))
    for (_, ended, _), (began, _, _) in pairwise(handled):
        assert ended <= began
    seen = (await shared_backend.storage(url).get_data("bot", (42, 42)) or {})["seen"]
    assert seen == [update_id for _, _, update_id in handled]


@pytest.mark.parametrize("run", range(20 if LARGE else 1))
async def test_an_update_delivered_several_times_out_of_order_changes_state_once_despite_kills(
    shared_backend: Backend, workers: Workers, run: int
) -> None:
    choose = seeded()
    url = shared_backend.place()
    deliveries = _deliveries(choose, USERS, dose("UPDATES", 200, 250) // USERS)
    unacknowledged = set(range(len(deliveries)))
    options = {"at_once": 16, "lease": 0.3, "pause": 0.0005}
    kills = 0
    for rounds_left in reversed(range(ROUNDS)):
        # Whatever was not acknowledged is delivered again, here to both workers at the same time.
        left = sorted(unacknowledged)
        both = []
        for _ in range(2):
            choose.shuffle(left)
            both.append(workers.start("converse", url, deliveries=[deliveries[number] for number in left], **options))
        share = len(left) // (rounds_left + 1)
        kills += sum(await asyncio.gather(*(_end(worker, choose, share if rounds_left else None) for worker in both)))
        for worker in both:
            for _, number, answers in worker.said("acknowledged"):
                # Answered as the first time, or not at all when it is not the newest any more.
                assert answers in ([str(deliveries[number][2])], [])
                unacknowledged.discard(number)
    print(f"{len(deliveries)} deliveries, {kills} kills on {shared_backend.name}")
    assert not unacknowledged
    assert kills >= ROUNDS // 2

    storage = shared_backend.storage(url)
    for user in range(1, USERS + 1):
        seen = (await storage.get_data("bot", (user, user)) or {})["seen"]
        assert sorted(seen) == sorted({update_id for _, owner, update_id in deliveries if owner == user})


async def _end(worker: Worker, choose: random.Random, share: int | None) -> bool:
    """Kill it somewhere on its way, or let it finish."""
    if share is not None:
        enough = choose.randint(0, share)
        while worker.alive() and len(worker.said("acknowledged")) < enough:
            await asyncio.sleep(0.002)
        if worker.alive():
            await worker.kill()
            return not worker.said("done")
    await worker.gone()
    return False


def _deliveries(choose: random.Random, users: int, each: int) -> list[Delivery]:
    """Each update 1 to 5 times, in no order at all."""
    ids = [(user, user * 10_000 + number) for user in range(1, users + 1) for number in range(each)]
    several = [update for update in ids for _ in range(choose.randint(1, 5))]
    choose.shuffle(several)
    return [(number, user, update_id) for number, (user, update_id) in enumerate(several)]


@pytest.mark.parametrize("hang", ["", "holding", "committed"])
async def test_the_registration_bot_killed_with_every_message_answers_as_if_nothing_had_happened(
    shared_backend: Backend, workers: Workers, hang: str
) -> None:
    url = shared_backend.place()
    for number, (said, answer) in enumerate(CONVERSATION):
        update = message(said, update_id=number + 1)
        if hang:
            # Killed while it handles the message, which is then delivered again.
            lost = workers.start("register", url, update=update, hang=hang)
            await lost.says("hangs")
            await lost.kill()
            assert lost.said("answered") == []
        bot = workers.start("register", url, update=update)
        await bot.says("answered")
        await bot.kill()
        assert bot.said("answered") == [["answered", [answer]]]
    assert await shared_backend.storage(url).get_state("registration_bot", (42, 42)) is None
