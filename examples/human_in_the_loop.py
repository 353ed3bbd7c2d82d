"""A flow that waits for a person, across processes: no process runs while it waits.

python examples/human_in_the_loop.py ask "A steep price"     # drafts, parks, and prints the id to answer
python examples/human_in_the_loop.py answer ID yes           # another process, any time later
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from stepwell import Storage, open_storage
from stepwell.nodes import Node, NodeFlow, Parked, Wait


class Draft(Node):
    async def exec(self, prep_res: Any) -> None:
        print("drafting (this costs money, so it happens once)")

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared["letter"] = f"Dear customer, about {shared['subject']}: ..."


class Approve(Wait):
    """``prep`` returns the question; ``post`` gets the answer."""

    def prep(self, shared: dict[str, Any]) -> dict[str, Any]:
        return {"text": "Send this letter?", "letter": shared["letter"]}

    def post(self, shared: dict[str, Any], question: Any, answer: str) -> str:
        shared["answer"] = answer
        return "send" if answer == "yes" else "drop"


class Outcome(Node):
    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared["outcome"] = self.name


draft, approve, dropped = Draft(), Approve("approve", timeout=7 * 86_400), Outcome(name="dropped")
draft >> approve
approve - "send" >> Outcome(name="sent")
approve - "drop" >> dropped
approve - "timeout" >> dropped
flow = NodeFlow(start=draft, name="letter")


async def main(storage: Storage, command: str, *words: str) -> None:
    async with storage:
        try:
            if command == "ask":
                final = await flow.run({"subject": words[0]}, storage=storage)
            else:
                final = await flow.resume(*words, storage=storage)
        except Parked as parked:
            print(parked.question["text"], parked.question["letter"])
            print(parked.id)
        else:
            print(final["outcome"])


if __name__ == "__main__":
    asyncio.run(main(open_storage("sqlite:///letters.db"), *sys.argv[1:]))
