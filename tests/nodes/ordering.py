"""A process that commits orders together with their runs, until it is killed: ``ordering.py URL``."""

from __future__ import annotations

import asyncio
import sys

import apsw
import asyncpg

from stepwell.nodes import Node, NodeFlow, linear


def orders(url: str) -> NodeFlow:
    return linear(Node(name="ship", inline=True), name="orders", storage=url)


async def main(url: str) -> None:
    if url.startswith("sqlite:"):
        await in_file(url)
        return
    flow = orders(url)
    connection = await asyncpg.connect(url.partition("?")[0])
    for number in range(1_000_000):
        async with connection.transaction():
            await connection.execute("insert into ordered values ($1)", number)
            await flow.submit({"order": number}, flow_id=f"order-{number}", connection=connection)
        print(number, flush=True)


async def in_file(url: str) -> None:
    flow = orders(url)
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    for number in range(1_000_000):
        with connection:
            connection.execute("insert into ordered values (?)", (number,))
            await flow.submit({"order": number}, flow_id=f"order-{number}", connection=connection)
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
