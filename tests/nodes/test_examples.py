"""The examples run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples import agent_loop, map_reduce, text_pipeline

ROOT = Path(__file__).parents[2]


def test_the_text_pipeline():
    assert text_pipeline.flow.run_sync({"text": "b a b"})["report"] == "1 x a\n2 x b"
    assert text_pipeline.flow.run_sync({"text": " "})["report"] == "nothing to count"


async def test_map_reduce_over_files_skips_what_it_cannot_read(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("water step " * number, encoding="utf-8")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xff")
    final = await map_reduce.flow.run({"folder": tmp_path})
    assert final["total"] == {"water": 190, "step": 190}
    assert final["unreadable"] == ["bad.txt"]


def test_the_agent_loop_answers_after_a_search():
    final = agent_loop.flow.run_sync({"question": "How big?"})
    assert final["answer"] == "How big? it is 20 m deep and it has 3,500 steps."
    assert final["turns"] == 2


@pytest.mark.parametrize("name", ["text_pipeline", "map_reduce", "agent_loop"])
def test_an_example_runs_as_a_script(name, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py", *([tmp_path] if name == "map_reduce" else [])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout
