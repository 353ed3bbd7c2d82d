"""An MCP server with two tools, over stdio: ``python -m tests.adapters.mcp_shop FOLDER``.

Each call is a line in ``FOLDER/calls``. ``pay`` waits for the file ``FOLDER/go``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

FOLDER = Path(sys.argv[1])
server = MCPServer("shop")


def note(text: str) -> None:
    with (FOLDER / "calls").open("a") as calls:
        calls.write(f"{text}\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def price(item: str) -> str:
    """Return the price of an item."""
    note(f"price {item}")
    return f"{item} costs 3"


@server.tool()
async def pay(item: str) -> str:
    """Pay for an item."""
    note(f"pay {item}")
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.01)
    return f"paid for {item}"


server.run("stdio")
