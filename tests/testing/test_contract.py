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


@pytest.mark.parametrize("module", ["stepwell.testing", "stepwell.testing.contract"])
def test_a_failing_assertion_shows_its_values(tmp_path: Path, module: str) -> None:
    path = tmp_path / "test_forgetful.py"
    path.write_text(FAILING.format(line=f"from {module} import StorageContract"))
    name = "test_a_record_without_data_has_empty_data"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:langsmith_plugin",
        "-k",
        name,
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "assert {'forgot': 'everything'} == {}" in done.stdout
    assert "AssertRewriteWarning" not in done.stdout + done.stderr


def test_the_other_names_need_no_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; from stepwell.testing import Chat, Clock, FaultyStorage"
    subprocess.run([sys.executable, "-c", code], check=True)
