"""``stepwell new-key``, ``stepwell rotate-keys``, and other commands on an encrypted storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell import State, open_storage
from stepwell.storage.sealed import new_key
from tests.cli.conftest import Command


async def test_an_encrypted_storage_in_the_command_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, url = f"sqlite:///{tmp_path}/bot.db", f"sealed+sqlite:///{tmp_path}/bot.db"
    first = (await command("new-key", "--json")).json
    key = (await command("new-key")).out.strip()
    async with open_storage(url, keys=[first["key"]]) as storage:
        await storage.set_state("shop", 42, State("order", "item", {"name": "Alice"}))

    done = await command("show", "shop", "42", "--storage", plain)
    assert "write sealed+ before its URL" in done.out + done.err and "Alice" not in done.out
    done = await command("show", "shop", "42", "--storage", url)
    assert done.code == 2 and "set STEPWELL_KEYS" in done.err
    done = await command("ls", "shop", "--storage", plain, "--json")
    assert "Alice" not in done.out

    monkeypatch.setenv("STEPWELL_KEYS", f"{key} {first['key']}")
    assert "Alice" in (await command("show", "shop", "42", "--storage", url)).out
    assert "item" in (await command("ls", "--storage", url)).out
    assert "42" in (await command("find", "name=Alice", "--storage", url)).out
    done = await command("doctor", "--storage", url)
    assert done.code == 0 and f"older keys: {first['id']}" in done.out
    assert "plaintext is accepted too" in (await command("doctor", "--storage", f"{url}?allow_plaintext=true")).out
    assert (await command("rotate-keys", "--storage", plain, "--yes")).code == 1
    assert (await command("rotate-keys", "--storage", url, "--dry-run", "--json")).json["rotated"] is False
    assert (await command("rotate-keys", "--storage", url)).code == 1
    rotated = (await command("rotate-keys", "--storage", url, "--yes", "--json")).json
    assert (rotated["rewritten"], rotated["unreadable"], rotated["busy"]) == (1, [], [])
    monkeypatch.setenv("STEPWELL_KEYS", key)
    assert "Alice" in (await command("show", "shop", "42", "--storage", url)).out
    copied = (await command("copy", url, f"sqlite:///{tmp_path}/plain.db", "--yes", "--json")).json
    assert (copied["written"], copied["damaged"]) == (1, [])
    monkeypatch.setenv("STEPWELL_KEYS", new_key())
    done = await command("rotate-keys", "--storage", url, "--yes")
    assert done.code == 1 and "unreadable" in done.err
    done = await command("show", "shop", "42", "--storage", f"sealed+sqlite:///{tmp_path}/no.db")
    assert "there is no file" in done.err
