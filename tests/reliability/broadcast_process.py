"""A process that runs one broadcast, with a short lease, so that a killed process does not delay the next."""

from __future__ import annotations

import asyncio
import sys

from stepwell.errors import LeaseLost
from stepwell.nodes.run import lease
from stepwell.telegram import BotClient, BroadcastResult, broadcast

LEASE = 1.0


async def main(api: str, token: str, storage: str, chats: int) -> BroadcastResult:
    lease.LEASE = LEASE
    async with BotClient(token, api=api, limits=None) as client:
        while True:
            try:
                return await broadcast(client, range(1, chats + 1), "Hello", storage=storage, flow_id="news")
            except LeaseLost:
                # The lease is too short for a busy machine.
                continue


if __name__ == "__main__":
    result = asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
    print(result.sent, *result.blocked_chats)
