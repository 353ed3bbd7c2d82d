"""``stepwell inspect``: the records and runs of a storage in the browser."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from typing import Any

from stepwell import Storage
from stepwell.cli import signals
from stepwell.cli.arguments import add_hosts, port
from stepwell.cli.code import flows_in
from stepwell.cli.command import Commands, given_url, storage_of
from stepwell.cli.console import tell
from stepwell.cli.writes import logged_writes, user_name
from stepwell.errors import UsageError
from stepwell.fsm import FSM, Router
from stepwell.nodes import NodeFlow

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the command."""
    about = "show the records and runs of a storage in the browser"
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect",
        help=about,
        description=f"{about[0].upper()}{about[1:]}. It is read-only without --allow-write.",
        epilog="example:\n  stepwell inspect sqlite:///bot.db bot.py --allow-write",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(action=_inspect)
    parser.add_argument("given", nargs="*", metavar="URL | module:flows", help="the storage, and the code of its flows")
    parser.add_argument(
        "--storage", metavar="URL", help="the storage (default: STEPWELL_STORAGE, else that of the code)"
    )
    add_hosts(parser, "browsers")
    parser.add_argument("--port", type=port, default=0, help="the port of the page (default: a free one)")
    parser.add_argument("--allow-write", action="store_true", help="allow edits of records and runs")
    parser.add_argument(
        "--access", metavar="FILE", help="a TOML file with the tokens and roles of people, and with the proxy in front"
    )


def _inspect(options: argparse.Namespace) -> int:
    urls = [each for each in options.given if "://" in each]
    codes = [each for each in options.given if "://" not in each]
    if options.access is not None and options.allow_write:
        raise UsageError("give --access or --allow-write: the roles in the file say who may edit")
    if len(urls) + bool(options.storage) > 1:
        raise UsageError("give one storage: stepwell inspect URL, or --storage URL")
    options.storage = urls[0] if urls else options.storage
    flows = [flow for code in codes for flow in flows_in(code, given_url(options))]
    routers = [flow.fsm for flow in flows if isinstance(flow, Router) and flow.fsm is not None]
    machines = [*routers, *(flow for flow in flows if isinstance(flow, FSM))]
    storage = storage_of(options, machines, [flow for flow in flows if isinstance(flow, NodeFlow)], patient=True)
    with contextlib.suppress(KeyboardInterrupt), logged_writes():
        asyncio.run(_serve(options, storage, flows))
    return 0


def _print_link(link: str) -> None:
    print(f"The link was used. This one opens another browser:\n\n  {link}\n", flush=True)


def _told(access: Any) -> str:
    people = f"Each person opens /?token= with a token of {', '.join(access.tokens)}. " if access.tokens else ""
    return people + ("The proxy in front names the person of each request." if access.proxy is not None else "")


async def _serve(options: argparse.Namespace, storage: Storage, flows: list[Any]) -> None:
    # Imported here because only this command needs the inspector extra.
    from stepwell.inspector.access import read_access
    from stepwell.inspector.server import InspectorServer

    access = None if options.access is None else read_access(options.access)
    async with (
        storage,
        InspectorServer(
            storage,
            flows,
            host=options.host,
            port=options.port,
            hosts=options.allow_host,
            allow_write=options.allow_write,
            access=access,
            name=f"{user_name()} (inspector)",
            new_link=_print_link,
        ) as server,
    ):
        if access is not None:
            tell(f"Showing {storage.location}. {_told(access)}")
            print(f"\n  {server.address}\n", flush=True)
            tell("Ctrl-C stops the inspector.")
        else:
            mode = "Edits are allowed." if options.allow_write else "It is read-only; --allow-write allows edits."
            tell(f"Showing {storage.location}. {mode}")
            print(f"\n  {server.url}\n", flush=True)
            tell("Open this link; it works in one browser. Ctrl-C stops the inspector.")
        await signals.stopped()
