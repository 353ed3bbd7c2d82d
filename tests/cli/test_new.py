"""The projects that ``stepwell new`` writes, as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.botfile import load_module
from stepwell.cli import main

#: Replaces the second node of the project: it prints a line and ends when there is a file beside it.
SLOW = """
    async def exec(self, found: list[str]) -> str:
        print("summarising", flush=True)
        while not os.path.exists("go"):
            await asyncio.sleep(0.01)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "flow", "wells"]) == 0
    return tmp_path / "wells"


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    command = [sys.executable, "flow.py", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=clean, stdout=pipe, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_ends_with_0_and_the_next_start_goes_on(project: Path, number: signal.Signals) -> None:
    code = (project / "flow.py").read_text()
    head, second, rest = code.partition("    def exec(self, found: list[str]) -> str:\n")
    assert second
    code = f"{head}{SLOW}{rest}".replace("return [f", 'print("fetching", flush=True)\n        return [f')
    (project / "flow.py").write_text(code)
    with start(project, "deep") as first:
        assert first.stdout is not None
        assert [first.stdout.readline() for _ in range(2)] == ["fetching\n", "summarising\n"]
        first.send_signal(number)
        output = first.communicate(timeout=60)[0]
    assert (first.returncode, output) == (0, "Interrupted; the same command goes on.\n")
    (project / "go").touch()
    with start(project, "deep") as second_start:
        output = second_start.communicate(timeout=60)[0]
    assert second_start.returncode == 0, output
    assert output.startswith("summarising\n"), output
    assert "deep 1, deep 2, deep 3" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_its_worker_ends_with_0_at_a_signal(project: Path, number: signal.Signals) -> None:
    process = start(project)
    try:
        url = f"sqlite:///{project}/wells.db"
        handle = await load_module(project / "flow.py").flow.submit({"topic": "deep"}, storage=url)
        assert (await handle.result(timeout=60))["summary"] == "deep 1, deep 2, deep 3"
        process.send_signal(number)
        output = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    assert process.returncode == 0, output
