"""The inspector on a machine without bots."""

from __future__ import annotations

import subprocess
import sys


def test_the_inspector_needs_no_package_of_bots() -> None:
    code = """if True:
        import asyncio, sys
        sys.modules["httpx"] = sys.modules["httptools"] = None
        import stepwell.inspector
        from stepwell import State, open_storage
        from stepwell.inspector.problems import look

        async def main():
            async with open_storage("memory://") as storage:
                await storage.set_state("shop", 42, State("order", "item"))
                print(len((await look(storage)).problems), "problems")

        asyncio.run(main())
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0 problems\n"
