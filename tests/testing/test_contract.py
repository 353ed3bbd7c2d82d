"""The contract suites in another project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FAILING = """
from stepwell import MemoryStorage
{line}


class Forgetful(MemoryStorage):
    async def get_data(self, bot, key):
        return {{"forgot": "everything"}}


class TestForgetful(StorageContract):
    def open_storage(self, clock):
        return Forgetful(clock=clock)
"""


#: Its store forgets a text some time after it was written.
FORGETTING = """
import time

from stepwell import KeyValueStorage
from stepwell.testing import KeyValueContract


class Forgetting(KeyValueStorage):
    def __init__(self, texts, **options):
        super().__init__(**options)
        self.texts = texts

    async def read(self, address):
        text, written = self.texts.get(address, (None, 0.0))
        return text if time.monotonic() < written + SECONDS else None

    async def write(self, address, text):
        self.texts[address] = (text, time.monotonic())

    async def delete(self, address):
        self.texts.pop(address, None)


class TestForgetting(KeyValueContract):
    def open_storage(self, clock):
        return Forgetting({}, clock=clock)

    def reopen(self, storage):
        return Forgetting(storage.texts, clock=storage.clock)
"""


WAITING = ("-k", "test_everything_is_kept_while_real_time_passes")


def run_pytest(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    plugins = ("-p", "no:cacheprovider", "-p", "no:langsmith_plugin")
    command = [sys.executable, "-m", "pytest", *plugins, *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=path.parent, check=False)


@pytest.mark.parametrize(
    ("seconds", "options", "code", "summary"),
    [
        (60, (), 0, " passed, 1 skipped"),
        (0.5, (*WAITING, "--stepwell-real-time", "1"), 1, "1 failed, "),
        (60, (*WAITING, "--stepwell-real-time", "1"), 0, "1 passed, "),
    ],
    ids=["without the option", "with it", "with it and a store that forgets nothing meanwhile"],
)
def test_a_store_that_forgets_is_found_by_the_test_that_waits(
    seconds: float, options: tuple[str, ...], code: int, summary: str, tmp_path: Path
) -> None:
    path = tmp_path / "test_forgetting.py"
    path.write_text(FORGETTING.replace("SECONDS", str(seconds)))
    done = run_pytest(path, "-rsf", *options)
    assert (done.returncode, summary in done.stdout) == (code, True), done.stdout + done.stderr
    if code:
        assert "the store has forgotten or changed 'claimed' within 1 s" in done.stdout
    if not options:
        assert "pass --stepwell-real-time 90" in done.stdout


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "nan", "a while"])
def test_the_seconds_of_the_wait_are_checked(seconds: str, tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").touch()
    done = run_pytest(tmp_path / "test_nothing.py", f"--stepwell-real-time={seconds}")
    assert done.returncode == 4
    assert "argument --stepwell-real-time: invalid" in done.stderr


@pytest.mark.parametrize("module", ["stepwell.testing", "stepwell.testing.contract"])
def test_a_failing_assertion_shows_its_values(tmp_path: Path, module: str) -> None:
    path = tmp_path / "test_forgetful.py"
    path.write_text(FAILING.format(line=f"from {module} import StorageContract"))
    name = "test_a_record_without_data_has_empty_data"
    done = run_pytest(path, "-k", name)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "assert {'forgot': 'everything'} == {}" in done.stdout
    assert "AssertRewriteWarning" not in done.stdout + done.stderr


def test_the_other_names_need_no_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; from stepwell.testing import Chat, Clock, FaultyStorage"
    subprocess.run([sys.executable, "-c", code], check=True)
