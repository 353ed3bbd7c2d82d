"""A trip whose bookings are runs of their own: some of them wait for a person, and the trip waits for all of them.

python examples/child_runs.py        # books a trip; answers the questions of its bookings from the terminal
python examples/child_runs.py yes    # answers every question with yes
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from stepwell import Storage, open_storage
from stepwell.nodes import ChildMap, Failed, Node, NodeFlow, RunHandle, Wait, linear, step, worker


class Offer(Node):
    """Stand in for a request to a hotel."""

    def prep(self, shared: dict[str, Any]) -> str:
        return str(shared["city"])

    async def exec(self, city: str) -> int:
        if city == "Atlantis":
            raise ValueError(f"there is no hotel in {city}")
        return 20 * len(city)

    def post(self, shared: dict[str, Any], city: str, price: int) -> str:
        shared["price"] = price
        return "ask" if price > 100 else "book"


class Approve(Wait):
    def prep(self, shared: dict[str, Any]) -> str:
        return f"The hotel in {shared['city']} costs {shared['price']}. Book it?"

    def post(self, shared: dict[str, Any], question: str, answer: str) -> str:
        return "book" if answer == "yes" else "drop"


class Book(Node):
    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared["booked"] = True


class Drop(Node):
    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared["booked"] = False


class Bookings(ChildMap):
    """One child run for each city. An error of one booking does not end the trip."""

    def prep(self, shared: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"city": city} for city in shared["cities"]]

    def post(self, shared: dict[str, Any], items: Any, finals: list[Any]) -> None:
        booked = [final for final in finals if not isinstance(final, Failed) and final["booked"]]
        shared["booked"] = {final["city"]: final["price"] for final in booked}


class Total(Node):
    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared["total"] = sum(shared["prices"])


class Pay(Node):
    """Waits for one child, and needs no worker meanwhile."""

    def __init__(self, totals: NodeFlow) -> None:
        super().__init__(name="pay")
        self.totals = totals

    def prep(self, shared: dict[str, Any]) -> list[int]:
        return list(shared["booked"].values())

    async def exec(self, prices: list[int]) -> int:
        handle = await step().child(self.totals, {"prices": prices}, id="total")
        return int((await handle.result())["total"])

    def post(self, shared: dict[str, Any], prices: list[int], total: int) -> None:
        shared["total"] = total


def make_flows(storage: Storage) -> tuple[NodeFlow, NodeFlow, NodeFlow]:
    """Return the flow of trips, and the flows of their children."""
    offer, approve, book = Offer(max_retries=2), Approve("approve"), Book()
    bookings = NodeFlow(start=offer, name="bookings", storage=storage)
    bookings.connect(offer, approve, action="ask").connect(offer, book, action="book")
    bookings.connect(approve, book, action="book").connect(approve, Drop(), action="drop")
    totals = linear(Total, name="totals", storage=storage)
    trips = linear(Bookings(bookings, concurrency=2, on_error="skip"), Pay(totals), name="trips", storage=storage)
    return trips, bookings, totals


async def answer_all(trip: RunHandle, bookings: NodeFlow, ask: Callable[[str], str]) -> dict[str, Any]:
    """Answer the questions of the bookings until the trip has ended."""
    ending = asyncio.create_task(trip.result())
    answered: set[str] = set()
    while not ending.done():
        async for booking in bookings.runs("parked"):
            for wait in booking.waits:
                if wait.id not in answered:
                    answered.add(wait.id)
                    await bookings.answer(wait.id, await asyncio.to_thread(ask, wait.question))
        await asyncio.wait([ending], timeout=0.1)
    return ending.result()


async def main(storage: Storage, ask: Callable[[str], str]) -> dict[str, Any]:
    async with storage:
        trips, bookings, totals = make_flows(storage)
        async with worker([trips, bookings, totals]):
            trip = await trips.submit({"cities": ["Bath", "Atlantis", "Lisbon", "Stockholm", "Oslo"]})
            return await answer_all(trip, bookings, ask)


def ask_here(question: str) -> str:
    return input(f"{question} (yes/no) ")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        always = sys.argv[1:]
        final = asyncio.run(
            main(open_storage(f"sqlite:///{folder}/trips.db"), (lambda question: always[0]) if always else ask_here)
        )
    print(f"booked {', '.join(final['booked'])} for {final['total']}")
