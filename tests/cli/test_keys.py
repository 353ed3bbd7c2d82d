"""``stepwell new-key``, ``stepwell rotate-keys``, and other commands on an encrypted storage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepwell import Log, State, open_storage
from stepwell.errors import KeyMissing
from stepwell.nodes import NodeFlow, Parked, Wait
from stepwell.record import INBOX
from stepwell.storage.operations import Get
from stepwell.storage.sealed import new_key
from stepwell.storage.sealed.keys import SealingKey
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
    # With the audit of the change of keys.
    assert (copied["written"], copied["damaged"]) == (2, [])
    monkeypatch.setenv("STEPWELL_KEYS", new_key())
    done = await command("rotate-keys", "--storage", url, "--yes")
    assert done.code == 1 and "unreadable" in done.err
    done = await command("show", "shop", "42", "--storage", f"sealed+sqlite:///{tmp_path}/no.db")
    assert "there is no file" in done.err


async def encrypted_shop(url: str) -> str:
    """Store two encrypted records, and return their key."""
    key = new_key()
    async with open_storage(url, keys=[key]) as storage:
        await storage.set_state("shop", 42, State("order", "item", {"name": "Alice"}))
        await storage.set_data("shop", 43, {"name": "Bob"})
    return key


@pytest.mark.parametrize("wrong", ["plain", "key"])
async def test_an_edit_with_a_wrong_key_or_without_keys_changes_nothing(
    wrong: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, url = f"sqlite:///{tmp_path}/bot.db", f"sealed+sqlite:///{tmp_path}/bot.db"
    key = await encrypted_shop(url)
    monkeypatch.setenv("STEPWELL_KEYS", new_key())
    at = ("--yes", "--storage", plain if wrong == "plain" else url)
    for edit in (
        ("set", "shop", "42", "name=Eve"),
        ("set", "shop", "42", "age=7"),
        ("set", "shop", "42", "name=Eve", "--dry-run"),
        ("set", "shop", "42", "--unset", "name"),
        ("set", "shop", "42", "--flow", "order", "--state", "paid"),
        ("clear", "shop", "42"),
        ("clear", "shop", "43"),
    ):
        done = await command(*edit, *at)
        assert done.code == 1, edit
        assert "needs the key with the id" in done.err
        assert done.logged == []
    async with open_storage(url, keys=[key]) as storage:
        assert await storage.get_state("shop", 42) == State("order", "item", {"name": "Alice"})
        assert await storage.get_data("shop", 43) == {"name": "Bob"}
    assert (await command("forget", "shop", "42", *at)).code == 0, "deleting needs no key"


async def test_doctor_names_the_missing_key_and_does_not_advise_to_clear_records(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, url = f"sqlite:///{tmp_path}/bot.db", f"sealed+sqlite:///{tmp_path}/bot.db"
    key = await encrypted_shop(url)
    async with open_storage(url, keys=[key]) as storage:
        with pytest.raises(Parked):
            await NodeFlow(Wait("ask"), name="refund").run({}, storage=storage, flow_id="asks", keep=True)
    key_id = SealingKey(key).id

    async def failures(url: str) -> list[tuple[str, str, str]]:
        done = await command("doctor", "--storage", url, "--json")
        assert "clear" not in done.out and "backup" not in done.out
        found = json.loads(done.out)["checks"]
        assert done.code == bool([each for each in found if each["level"] == "fail"])
        assert [each["level"] for each in found if each["check"] == "encryption"].count("ok") == (done.code == 0)
        return [(each["check"], each["what"], each["advice"]) for each in found if each["level"] == "fail"]

    need = f"need the key with the id {key_id!r}"
    monkeypatch.setenv("STEPWELL_KEYS", new_key())
    intact = "the records are intact: add the key to STEPWELL_KEYS"
    assert await failures(url) == [
        ("encryption", f"2 of 2 records of 'shop' {need}, the first is shop/42", intact),
        ("encryption", f'1 of 1 run {need}, the first is "runs"/"asks"', intact),
    ]
    found = await failures(plain)
    assert [what for _, what, _ in found] == [
        f"2 of 2 records of 'shop' {need}, and the storage was opened without keys, the first is shop/42",
        f'1 of 1 run {need}, and the storage was opened without keys, the first is "runs"/"asks"',
    ]
    assert "write sealed+ before its URL" in found[0][2]
    monkeypatch.setenv("STEPWELL_KEYS", key)
    assert await failures(url) == []
    async with open_storage(plain) as storage:
        await storage.set_data("shop", 44, {"name": "Cleo"})
    (found_plain,) = await failures(url)
    assert found_plain[1] == "1 of 3 records of 'shop' have plaintext, the first is shop/44"


async def test_the_keys_of_one_bot_are_rotated_with_its_logs_and_a_misspelt_bot_is_refused(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sealed+sqlite:///{tmp_path}/bot.db"
    old, new = new_key(), new_key()
    async with open_storage(url, keys=[old]) as storage:
        for bot in ("shop", "other"):
            await storage.set_data(bot, 42, {"name": "Alice"})
            await Log(storage, bot, 42).append("one")
            await storage.set_data(INBOX, bot, {"next": 1})
            for address in (storage.address(bot, 42), Log(storage, bot, 42).address):
                damaged = await storage.perform(Get(address, parts=True))
                await storage.perform(storage.copy_of_damage(address, damaged))
    monkeypatch.setenv("STEPWELL_KEYS", f"{new} {old}")
    refused = await command("rotate-keys", "--bot", "shopp", "--storage", url, "--yes")
    assert refused.code == 3
    assert "shopp" in refused.err and "'shop'" in refused.err
    rotated = (await command("rotate-keys", "--bot", "shop", "--storage", url, "--yes", "--json")).json
    assert (rotated["rewritten"], rotated["unreadable"]) == (5, [])
    async with open_storage(url, keys=[new]) as storage:
        assert await storage.get_data("shop", 42) == {"name": "Alice"}
        assert [entry.value for entry in await Log(storage, "shop", 42).read()] == ["one"]
        assert await storage.get_data(INBOX, "shop") == {"next": 1}
        assert await storage.quarantined("shop", 42) is not None
        with pytest.raises(KeyMissing):
            await Log(storage, "other", 42).read()
