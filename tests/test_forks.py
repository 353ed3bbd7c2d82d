"""The processes that ``make test`` forks: ``tests/forks.py``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

ONE = """
import os
import pytest

@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    yield os.getpid()

@pytest.mark.parametrize("number", range(20))
def test_it_passes(number, shared, tmp_path):
    assert shared == os.getpid()

def test_it_fails():
    print("what the test has printed")
    assert 1 == 2
"""
TWO = """
import os
import pytest

def test_it_ends_its_process():
    os._exit(7)

@pytest.mark.parametrize("number", range(3))
def test_it_is_run_by_another_process(number):
    pass

@pytest.fixture
def broken():
    yield
    raise RuntimeError("in the teardown")

def test_it_has_a_broken_fixture(broken):
    pass

@pytest.mark.skip
def test_it_is_skipped():
    pass
"""


def ran(folder: Path, *options: str) -> tuple[int, str]:
    """Return the exit code and output of the tests of a folder."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.forks", "-p", "no:cacheprovider", *options]
    done = subprocess.run([*command, folder], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout


def test_every_test_is_run_once_and_reported(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(ONE)
    (tmp_path / "test_two.py").write_text(TWO)
    code, out = ran(tmp_path, "--forks=2", "-v")
    assert code == 1
    assert "2 failed, 24 passed, 1 skipped, 1 error in" in out
    assert "what the test has printed" in out
    assert "the process of this test has ended with 7" in out
    assert "in the teardown" in out
    begun = re.findall(r"^\S*(test_\w+\.py::\S+) (?:PASSED|FAILED|SKIPPED)", out, re.MULTILINE)
    assert len(begun) == len(set(begun)) == 27


def test_tests_that_no_process_has_run_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(TWO)
    code, out = ran(tmp_path, "--forks=1")
    assert code != 0
    assert "5 tests have not run, because their processes have ended" in out
