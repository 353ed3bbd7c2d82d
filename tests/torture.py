"""The pytest plugin of ``make torture``: it writes ``docs/reliability.md`` from the tests that have run.

Each test is one row: its name is the promise, its output has the figures. Rows of earlier runs stay until their test
runs again, each with its commit and day, so that the doses can be run in parts.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "tests" / "torture.json"
PAGE = ROOT / "docs" / "reliability.md"

TITLES = {
    "reliability": "Kills, stops, lost connections and failovers",
    "storage": "Storages",
    "codec": "Values",
    "adapters": "Frameworks",
}


class Torture:
    """Collects the rows of this run."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        changed = _git("status", "--porcelain", "--", ".", f":!{ROWS}", f":!{PAGE}")
        self.commit = _git("rev-parse", "--short", "HEAD") + ("*" if changed else "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or not (report.when == "call" or report.failed):
            return
        printed = report.capstdout.splitlines()
        seeds = [line.partition("=")[2] for line in printed if line.startswith("STEPWELL_SEED=")]
        figures = [line.strip() for line in printed if re.search(r"\d", line) and not line.startswith("STEPWELL_SEED=")]
        self.rows[report.nodeid] = {
            "passed": report.passed,
            "figures": "; ".join(figures)[:300],
            "seed": seeds[0] if seeds else "",
            "seconds": round(report.duration, 1),
            "commit": self.commit,
            "day": time.strftime("%Y-%m-%d", time.gmtime()),
        }

    def pytest_sessionfinish(self) -> None:
        known: dict[str, Any] = json.loads(ROWS.read_text()) if ROWS.exists() else {}
        known |= self.rows
        ROWS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
        PAGE.write_text(page(known))


def page(rows: dict[str, dict[str, Any]]) -> str:
    """Return the page: a table for each group, with the tests that print figures first."""
    measured = {name: row for name, row in rows.items() if row["figures"]}
    text = [
        "# Reliability",
        "",
        "What was tried to break Stepwell, and what came out. `make torture` writes this page: each row is a test in "
        "its large dose on real servers and processes, its name is the promise. A test also fails if too little "
        "succeeded meanwhile: a run in which nothing happened proves nothing. The [concepts](concepts/index.md) "
        "say what is promised, and what is impossible.",
        "",
        f"{len(rows)} tests, {sum(not row['passed'] for row in rows.values())} failed.",
    ]
    for group, title in TITLES.items():
        found = {name: row for name, row in sorted(measured.items()) if name.startswith(f"tests/{group}/")}
        if found:
            text += [
                "",
                f"## {title}",
                "",
                "| promise | storage | figures | result | seed | commit |",
                "| --- | --- | --- | --- | --- | --- |",
            ]
            text += [_line(name, row) for name, row in found.items()]
    others = len(rows) - len(measured)
    if others:
        text += ["", f"{others} more tests ran in their large dose and print no figures."]
    return "\n".join(text) + "\n"


def _line(name: str, row: dict[str, Any]) -> str:
    sentence, _, variant = name.rpartition("::")[2].partition("[")
    promise = sentence.removeprefix("test_").replace("_", " ")
    cells = [
        promise, variant.rstrip("]"), row["figures"].replace("|", "\\|"),
        "holds" if row["passed"] else "**failed**", row["seed"], f"{row['commit']}, {row['day']}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Torture(), "stepwell-torture")
