"""Conversations in several processes: one update of a key at a time, each update once, killed at any point."""

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
from tests.until import until

#: Number of the delivery, user, update id.
Delivery = tuple[int, int, int]
USERS = 10
#: Both workers are killed in all rounds but the last.
ROUNDS = 5


async def test_messages_of_one_user_sent_at_once_to_two_workers_are_handled_one_at_a_time(
    shared_backend: Backend, workers: Workers
) -> None:
    url = shared_backend.place()
    deliveries: list[Delivery] = [(number, 42, number + 1) for number in range(20)]
    options = {"at_once": 20, "lease": 30.0, "pause": 0.005}
    both = [workers.start("converse", url, deliveries=deliveries[half::2], **options) for half in range(2)]
    for worker in both:
        await worker.wait_for("done")

    handled = sorted(
        (began, ended, update_id) for worker in both for _, update_id, began, ended in worker.reported("handled")
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
    deliveries = _deliveries(choose, USERS, dose("UPDATES", 100, 250) // USERS)
    unacknowledged = set(range(len(deliveries)))
    options = {"at_once": 16, "lease": 0.3, "pause": 0.0005}
    kills = 0
    for rounds_left in reversed(range(ROUNDS)):
        # Updates that were not acknowledged are delivered again, to both workers at the same time.
        left = sorted(unacknowledged)
        both = []
        for _ in range(2):
            choose.shuffle(left)
            both.append(workers.start("converse", url, deliveries=[deliveries[number] for number in left], **options))
        share = len(left) // (rounds_left + 1)
        kills += sum(await asyncio.gather(*(_end(worker, choose, share if rounds_left else None) for worker in both)))
        for worker in both:
            for _, number, answers in worker.reported("acknowledged"):
                # Repeated answers are those of the first time, or none if a newer update was handled.
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
    """Kill a worker after some of its deliveries, or let it finish."""
    if share is not None:
        enough = choose.randint(0, share)
        await until(lambda: not worker.alive() or len(worker.reported("acknowledged")) >= enough)
        if worker.alive():
            await worker.kill()
            return not worker.reported("done")
    await worker.wait_ended()
    return False


def _deliveries(choose: random.Random, users: int, each: int) -> list[Delivery]:
    """Return each update 1 to 5 times, in random order."""
    ids = [(user, user * 10_000 + number) for user in range(1, users + 1) for number in range(each)]
    several = [update for update in ids for _ in range(choose.randint(1, 5))]
    choose.shuffle(several)
    return [(number, user, update_id) for number, (user, update_id) in enumerate(several)]


@pytest.mark.parametrize("hang", ["", "holding", "committed"])
async def test_the_registration_bot_killed_at_every_message_gives_the_same_answers(
    shared_backend: Backend, workers: Workers, hang: str
) -> None:
    url = shared_backend.place()
    for number, (said, answer) in enumerate(CONVERSATION):
        update = message(said, update_id=number + 1)
        if hang:
            # The worker is killed while it handles the message, which is then delivered again.
            lost = workers.start("register", url, update=update, hang=hang)
            await lost.wait_for("hangs")
            await lost.kill()
            assert lost.reported("answered") == []
        bot = workers.start("register", url, update=update)
        await bot.wait_for("answered")
        await bot.kill()
        assert bot.reported("answered") == [["answered", [answer]]]
    assert await shared_backend.storage(url).get_state("registration_bot", (42, 42)) is None
