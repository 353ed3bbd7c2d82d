"""The pages about performance show the figures that the benchmarks keep."""

from __future__ import annotations

import json
import re
from typing import Any

from benchmarks.comparison_report import plot, report
from benchmarks.comparison_results import Comparison
from benchmarks.performance_page import CALLS, PAGE, page

from tests.docs.page import ROOT

RUN = Comparison.load()
COUNTED: dict[str, Any] = json.loads(CALLS.read_text())


def test_the_page_shows_the_kept_figures() -> None:
    assert PAGE.read_text() == page(RUN, COUNTED)


def test_the_results_and_the_plot_show_the_kept_figures() -> None:
    assert (ROOT / "benchmarks" / "RESULTS.md").read_text() == report(RUN)
    assert (ROOT / "docs" / "images" / "comparison.svg").read_text() == plot(RUN)


def test_every_subject_of_the_page_keeps_all_updates_if_it_is_ours() -> None:
    assert [each.subject for each in RUN.results if "Stepwell" in each.subject and not each.right] == []


def test_the_calls_in_the_readme_are_the_counted_ones() -> None:
    lines = re.findall(r"^\| one (?:update|stored node|node), .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    shown = [int(number.replace(",", "")) for line in lines for number in re.findall(r"\d[\d,]*", line)]
    rows = {(row["subject"], row["unit"], row["remark"] == "its SQLite saver"): row["calls"] for row in COUNTED["rows"]}
    assert shown == [
        round(rows[key])
        for key in (
            ("aiogram", "one update", False),
            ("python-telegram-bot", "one update", False),
            ("Stepwell, memory", "one update", False),
            ("LangGraph", "node", True),
            ("Stepwell, SQLite", "durable node", False),
            ("LangGraph", "node", False),
            ("PocketFlow", "node", False),
            ("Stepwell, memory", "durable node", False),
        )
    ]
