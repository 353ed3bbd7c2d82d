"""``copy``, ``migrate``, ``diagram``, ``new`` and ``completion``."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from stepwell import Log, open_storage
from stepwell.nodes import NodeFlow, Parked, Wait
from stepwell.record import Address
from stepwell.storage.copying.copy import _Copier
from tests.backends import Backend
from tests.cli.conftest import Command, fill

OLD = """
from stepwell.fsm import FSM, Flow, Router, state

class Order(Flow, name="order", revision=2):
    item = state()
    street = state()

    @classmethod
    def migrate(cls, revision, state, data):
        if data["name"] == "Bob":
            raise ValueError("Bob stays")
        return ("street" if state == "address" else state), data

def make_router(storage):
    return Router(FSM("shop", storage=storage, flows=[Order]))
"""


@pytest.mark.every_backend
async def test_copy_moves_everything_to_another_storage(
    url: str, command: Command, shared_backend: Backend, tmp_path: Path
) -> None:
    with pytest.raises(Parked):
        await NodeFlow(Wait("ask"), name="refund").run({}, storage=shared_backend.storage(url), flow_id="asks")
    target = f"sqlite:///{tmp_path}/target.db"
    dry = await command("copy", url, target, "--dry-run", "--json")
    assert dry.json == {"copied": False, "records": {"runs": 1, "shop": 3}}
    assert not (tmp_path / "target.db").exists()
    done = (await command("copy", url, target, "--yes", "--json")).json
    assert (done["written"], done["verified"], done["damaged"]) == (4, 4, [])
    again = (await command("copy", url, target, "--yes", "--json")).json
    assert (again["written"], again["same"]) == (0, 4)
    found = (await command("ls", "shop", "--storage", target, "--json")).json["records"]
    assert sorted(each["key"] for each in found) == ["(42,42)", "(43,43)", "(44,44)"]
    assert (await command("runs", "asks", "--storage", target, "--json")).json["status"] == "parked"


async def test_copy_takes_single_bots(url: str, command: Command, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/target.db"
    done = await command("copy", url, target, "--bot", "nobody", "--yes")
    assert done.code == 3
    assert "no records of the bot 'nobody'" in done.err
    assert (await command("copy", url, target, "--bot", "shop", "--runs", "--yes", "--json")).json["written"] == 3
    assert (await command("copy", url, target)).code == 1


async def test_copy_does_not_hide_records_that_are_gone_in_the_source(command: Command, tmp_path: Path) -> None:
    urls = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    async with open_storage(urls[0]) as storage:
        await fill(storage)
    assert (await command("copy", *urls, "--yes")).code == 0
    await command("clear", "shop", "42", "--yes", "--storage", urls[0])
    await command("forget", "--user", "43", "--yes", "--storage", urls[0])
    again = await command("copy", *urls, "--yes")
    assert again.code == 0
    assert "2 records of the target are not in the source" in again.err
    assert len(again.logged) == 1
    both = await command("copy", *urls, "--yes", "--keep", "--delete-extra")
    assert both.code == 2
    assert (await command("copy", *urls, "--yes", "--json")).json["extra"] == 2
    planned = await command("copy", *urls, "--dry-run", "--delete-extra")
    assert "to delete in the target: 2 records" in planned.out
    assert (await command("copy", *urls, "--yes", "--json")).json["extra"] == 2
    done = await command("copy", *urls, "--yes", "--delete-extra", "--json")
    assert (done.json["extra"], done.json["removed"]) == (0, 2)
    assert done.logged[0].endswith(" and deleted 2 there")
    found = (await command("ls", "shop", "--storage", urls[1], "--json")).json["records"]
    assert [each["key"] for each in found] == ["(44,44)"]
    assert b"Bob" not in (tmp_path / "b.db").read_bytes()


async def test_delete_extra_does_not_empty_the_target_or_delete_the_runs_of_others(
    command: Command, tmp_path: Path
) -> None:
    empty, full = f"sqlite:///{tmp_path}/empty.db", f"sqlite:///{tmp_path}/full.db"
    async with open_storage(empty) as storage, open_storage(full) as target:
        await storage.set_data("shop", 1, {"a": 1})
        await storage.clear("shop", 1)
        await fill(target)
    refused = await command("copy", empty, full, "--yes", "--delete-extra")
    assert (refused.code, refused.out) == (1, "")
    assert "the source has no records, so --delete-extra would empty the target" in refused.err
    runs = await command("copy", full, empty, "--yes", "--bot", "shop", "--runs", "--delete-extra")
    assert runs.code == 2
    assert "would delete the runs of other programs" in runs.err
    assert len((await command("ls", "shop", "--storage", full, "--json")).json["records"]) == 3
    # A file that does not exist yet is not created.
    planned = await command("copy", full, f"sqlite:///{tmp_path}/new.db", "--dry-run", "--delete-extra", "--json")
    assert planned.json["removed"] == 0
    assert not (tmp_path / "new.db").exists()


async def test_copy_refuses_the_same_file_in_another_spelling(command: Command, tmp_path: Path) -> None:
    async with open_storage(f"sqlite:///{tmp_path}/a.db") as storage:
        await fill(storage)
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    for other in (f"sqlite:///{tmp_path}/./a.db", f"sqlite:///{tmp_path}/link.db", f"sqlite:///{tmp_path}//a.db"):
        done = await command("copy", f"sqlite:///{tmp_path}/a.db", other, "--yes")
        assert (done.code, done.out) == (2, "")
        assert "same file" in done.err


async def test_a_copy_that_fails_is_logged(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with open_storage(url) as storage:
        await fill(storage)

    async def compare(self: _Copier, address: Address) -> None:
        self.differing.append(address)

    monkeypatch.setattr(_Copier, "compare", compare)
    done = await command("copy", url, f"sqlite:///{tmp_path}/b.db", "--yes")
    assert done.code == 1
    assert "3 records differ" in done.err
    assert [line.partition(" ")[2].partition(" from ")[0] for line in done.logged] == ["copied 3 records"]
    assert done.logged[0].endswith("; the copy failed")


async def test_copy_takes_the_logs_of_a_bot(command: Command, tmp_path: Path) -> None:
    urls = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    async with open_storage(urls[0]) as storage:
        await fill(storage)
        for bot in ("shop", "other"):
            await Log(storage, bot, 42).append("Hello")
    dry = await command("copy", *urls, "--bot", "shop", "--dry-run", "--json")
    assert dry.json["records"] == {"shop": 3, "logs": 1}
    assert (await command("copy", *urls, "--bot", "shop", "--yes", "--json")).json["written"] == 4
    async with open_storage(urls[1]) as storage:
        assert [len(await Log(storage, bot, 42).read()) for bot in ("shop", "other")] == [1, 0]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
async def test_a_copy_that_is_stopped_leaves_no_leases(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_storage(f"sqlite:///{path}") as storage:
        await asyncio.gather(*(storage.set_data("shop", key, {"a": "x" * 1000}) for key in range(5000)))
    copy = [sys.executable, "-m", "stepwell", "copy", f"sqlite:///{path}", f"sqlite:///{tmp_path}/b.db", "--yes"]
    # Shells start a job in the background with SIGINT ignored.
    copy = ["sh", "-c", """trap '' INT; exec "$@" """, "sh", *copy]
    process = await asyncio.create_subprocess_exec(*copy, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5000)

    def held(behind: str = "") -> int:
        return int(connection.execute("SELECT count(*) FROM lease WHERE key > ?", (behind,)).fetchone()[0])

    try:
        # The keys are copied in the order of their texts, so many are written by then.
        while held("2") < 20:
            assert process.returncode is None, "the copy ended without many leases"
            await asyncio.sleep(0)
        process.send_signal(signal.SIGTERM)
        out, err = await process.communicate()
        assert (process.returncode, out) == (143, b"")
        assert b"Traceback" not in err, err.decode()
        assert b"; the copy was stopped" in err
        assert held() == 0
    finally:
        connection.close()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_migrate_moves_records_to_the_present_revision(url: str, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "bot_of_migrate.py"
    file.write_text(OLD)
    dry = (await command("migrate", str(file), "--dry-run", "--json")).json
    assert (dry["old"], dry["migrated"]) == ({"shop": 3}, {})
    done = await command("migrate", str(file), "--yes")
    assert done.code == 1
    assert "migrated 2 records" in done.out
    assert "not migrated: shop (43,43)" in done.err
    record = (await command("show", "shop", "42", "--json")).json
    assert (record["state"], record["revision"]) == ("street", 2)


async def test_migrate_without_code_creates_the_tables(tmp_path: Path, command: Command) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with open_storage(url):
        pass
    assert (await command("migrate", "--storage", url, "--json")).json["schema"] == 1


async def test_diagram_prints_the_flows_of_a_file(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "flows_of_diagram.py"
    file.write_text(
        OLD + "\nfrom stepwell.nodes import NodeFlow, Wait\nrefund = NodeFlow(Wait('ask'), name='refund')\n"
    )
    (tmp_path / "broken_of_diagram.py").write_text("import (")
    both = await command("diagram", str(file))
    assert both.code == 0
    assert "%% order\nstateDiagram-v2" in both.out
    assert "%% refund\nflowchart TD" in both.out
    one = await command("diagram", str(file), "--flow", "order")
    assert one.out.startswith("stateDiagram-v2")
    assert list((await command("diagram", f"{file}:refund", "--json")).json["flows"]) == ["refund"]
    for arguments, message in (
        ([str(file), "--flow", "nope"], "has no flow 'nope'; it has 'order', 'refund'"),
        ([f"{file}:nope"], "has no 'nope'"),
        ([str(tmp_path / "nope.py")], "does not exist"),
        (["json"], "json has no flows"),
        ([str(tmp_path / "broken_of_diagram.py")], "cannot import"),
    ):
        done = await command("diagram", *arguments)
        assert (done.code, done.out) == (1, "")
        assert message in done.err
        assert done.err.count("\n") == 1


@pytest.mark.parametrize("kind", ["bot", "flow"])
async def test_the_tests_of_a_new_project_pass_as_written(
    kind: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = (await command("new", kind, "my-shop", "--json")).json["written"]
    names = {f"{kind}.py", f"test_{kind}.py", "pyproject.toml", "Dockerfile", "README.md", ".gitignore"}
    assert {Path(each).name for each in written} == names
    assert not any("@name@" in Path(each).read_text() for each in written)
    # Without the other plugins of this environment, which take seconds to load.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = ["-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin"]
    tests = [sys.executable, "-W", "error", "-m", "pytest", "-q", *plugins]
    done = subprocess.run(tests, cwd="my-shop", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache"]
    checked = subprocess.run(ruff, cwd="my-shop", capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    again = await command("new", kind, "my-shop")
    assert (again.code, again.err) == (1, "stepwell: my-shop exists already; choose another name\n")
    drawn = await command("diagram", f"my-shop/{kind}.py")
    assert drawn.code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_completion_knows_all_commands_and_options(shell: str, command: Command) -> None:
    script = await command("completion", shell)
    assert script.code == 0
    for word in ("doctor", "timers", "dry-run"):
        assert word in script.out
    program = shutil.which(shell)
    if program is not None and shell != "zsh":
        assert subprocess.run([program, "-n"], input=script.out, text=True, check=False).returncode == 0


def test_bash_completes_commands() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    code = f"""
        eval "$({sys.executable} -m stepwell completion bash)"
        COMP_WORDS=(stepwell do); COMP_CWORD=1; _stepwell; echo "${{COMPREPLY[*]}}"
        COMP_WORDS=(stepwell timers --ov); COMP_CWORD=2; _stepwell; echo "${{COMPREPLY[*]}}"
    """
    done = subprocess.run([bash, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "doctor\n--overdue\n"


async def test_a_refused_import_creates_no_file(command: Command, tmp_path: Path) -> None:
    (tmp_path / "bot.pickle").write_bytes(b"")
    url = f"sqlite:///{tmp_path}/new.db"
    for arguments, code in (([], 2), (["--bot-id", "7"], 1)):
        given = ["import-ptb", str(tmp_path / "bot.pickle"), "--trust-pickle", "--yes", "--storage", url, *arguments]
        assert (await command(*given)).code == code
        assert [file.name for file in tmp_path.iterdir()] == ["bot.pickle"]
