"""``stepwell inspect`` as a process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import httpx
import pytest

from stepwell.storage import open_storage
from tests.cli.conftest import Command
from tests.inspector import shop

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("options", [[], ["--allow-write"]], ids=["read-only", "writes"])
async def test_it_prints_links_that_work_once_and_ends_with_a_signal(tmp_path: Path, options: list[str]) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    async with open_storage(url) as storage:
        await shop.fill(storage)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stepwell", "inspect", url, "tests.inspector.shop:Order", *options,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert process.stdout is not None

    async def link() -> str:
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode():
            if found := re.fullmatch(r"  (http://127\.0\.0\.1:\d+/\?token=\S+)\n", line):
                return found[1]
        raise AssertionError("it printed no link")

    try:
        async with asyncio.timeout(60), httpx.AsyncClient() as client:
            first = await link()
            assert (await client.get(first)).status_code == 200
            address = first.partition("?")[0]
            answer = (await client.get(f"{address}api/records")).json()
            assert (answer["allow_write"], len(answer["records"]["rows"])) == (bool(options), 3)
            flows = (await client.get(f"{address}api/flows")).json()["flows"]
            assert [flow["name"] for flow in flows["conversations"]] == ["order"]
            assert await link() != first
            record = (await client.get(f"{address}api/record", params={"bot": "shop", "key": "42"})).json()["record"]
            body = {"bot": "shop", "key": "42", "version": record["version"], "field": "name", "value": '"Ann"'}
            edited = await client.post(f"{address}api/set_field", json=body, headers={"Origin": address[:-1]})
            assert edited.status_code == (200 if options else 403)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            assert process.stderr is not None
            lines = (await process.stderr.read()).decode().splitlines()
            assert [line.partition("(inspector) ")[2] for line in lines] == (
                ["changed field name of shop (42,42)"] if options else []
            )
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no storage is given"),
        (["memory://"], "in the memory of one process"),
        (["sqlite:///missing.db"], "there is no file"),
        (["sqlite:///a.db", "sqlite:///b.db"], "give one storage"),
        (["sqlite:///a.db", "no_such_module"], "cannot import 'no_such_module'"),
        (["sqlite:///a.db", "json"], "json has no flows"),
        (["sqlite:///a.db", "--port", "70000"], "a port must be a number from 0 to 65535"),
    ],
)
async def test_wrong_input_gives_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.delenv("STEPWELL_STORAGE", raising=False)
    done = await command("inspect", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2 if "--port" in arguments else 1, "", 1)
    assert message in done.err


async def test_people_and_a_proxy_of_a_file_get_in_with_their_roles(tmp_path: Path) -> None:
    url, access = f"sqlite:///{tmp_path}/shop.db", tmp_path / "access.toml"
    async with open_storage(url) as storage:
        await shop.fill(storage)
    token, secret = "the token of otto 123", "the secret of the proxy"
    access.write_text(
        f'[people.otto]\ntoken = "{token}"\nrole = "operator"\n[proxy]\nsecret = "{secret}"\n[roles]\nanna = "admin"\n'
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stepwell", "inspect", url, "--access", str(access), "--allow-host", "admin.example",
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60), httpx.AsyncClient() as client:
            printed = ""
            while not (found := re.search(r"^  (http://127\.0\.0\.1:\d+/)\n", printed, re.MULTILINE)):
                printed += (await process.stdout.readline()).decode()
            assert "token" not in found[1]
            assert token not in printed
            # The browser speaks to the proxy, which has another name and port.
            proxied = {"Host": "admin.example", "X-Stepwell-Proxy": secret, "X-Forwarded-User": "anna"}
            shown = (await client.get(f"{found[1]}api/overview", headers=proxied)).json()
            assert (shown["person"], shown["role"]) == ("anna", "admin")
            assert (await client.get(found[1], params={"token": token})).status_code == 200
            shown = (await client.get(f"{found[1]}api/overview")).json()
            assert (shown["person"], shown["role"]) == ("otto", "operator")
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
    assert process.stderr is not None
    assert secret not in (await process.stderr.read()).decode()


async def test_a_file_and_allow_write_are_not_given_together(command: Command, tmp_path: Path) -> None:
    done = await command("inspect", f"sqlite:///{tmp_path}/a.db", "--access", "a.toml", "--allow-write")
    assert done.code != 0
    assert "give --access or --allow-write" in done.err
