"""The pytest plugin of ``make torture``: it writes ``docs/reliability.md`` from the tests that have run.

Each test is one row: its name is the promise, its output has the figures; without output they are its doses. Rows of
earlier runs stay until their test runs again, each with its commit and day, so that the doses can be run in parts.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.reliability import dose

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "tests" / "torture.json"
PAGE = ROOT / "docs" / "reliability.md"

NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")

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
        written = [f":!{path.relative_to(ROOT)}" for path in (ROWS, PAGE)]
        changed = _git("status", "--porcelain", "--", ".", *written)
        self.commit = _git("rev-parse", "--short", "HEAD") + ("*" if changed else "")

    def pytest_runtest_setup(self) -> None:
        dose.USED.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or not (report.when == "call" or report.failed):
            return
        printed = report.capstdout.splitlines()
        seeds = [line.partition("=")[2] for line in printed if line.startswith("STEPWELL_SEED=")]
        figures = [line.strip() for line in printed if re.search(r"\d", line) and not line.startswith("STEPWELL_SEED=")]
        used = [f"{number:,} {name.lower().replace('_', ' ')}" for name, number in dose.USED.items()]
        self.rows[report.nodeid] = {
            "passed": report.passed,
            "figures": "; ".join(_gathered(figures)) or ", ".join(used),
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
        "say what is promised, and what is impossible. All seeds are in `tests/torture.json`; `STEPWELL_SEED` repeats "
        "one.",
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
            text += [_line(*key, repeated) for key, repeated in _repetitions(found).items()]
    others = len(rows) - len(measured)
    if others:
        text += ["", f"{others} more tests ran in their large dose and print no figures."]
    return "\n".join(text) + "\n"


def _repetitions(rows: dict[str, dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the rows by promise and storage: a test that is repeated has a number after its storage."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, row in rows.items():
        sentence, _, variant = name.rpartition("::")[2].partition("[")
        promise = sentence.removeprefix("test_").replace("_", " ")
        found.setdefault((promise, re.sub(r"-\d*$", "", variant.rstrip("]"))), []).append(row)
    return found


def _line(promise: str, storage: str, rows: list[dict[str, Any]]) -> str:
    seeds = [row["seed"] for row in rows if row["seed"]]
    cells = [
        promise, storage, _figures([row["figures"] for row in rows]).replace("|", "\\|"),
        "holds" if all(row["passed"] for row in rows) else "**failed**",
        seeds[0] if len(seeds) == 1 else f"{len(seeds)} seeds" if seeds else "",
        ", ".join(sorted({f"{row['commit']} of {row['day']}" for row in rows})),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _figures(texts: list[str]) -> str:
    """Return the figures of repetitions as one text, with the smallest and the largest of each."""
    if len(texts) == 1:
        return texts[0]
    if len({_shape(text) for text in texts}) > 1:
        return f"{len(texts)} runs, for example: {texts[0]}"
    return f"{len(texts)} runs, each with {_spans(texts)}"


def _gathered(lines: list[str]) -> list[str]:
    """Return lines of one shape as one line, with the smallest and the largest of each figure."""
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(_shape(line), []).append(line)
    return [_spans(texts) for texts in found.values()]


def _shape(text: str) -> str:
    return NUMBER.sub("#", text)


def _spans(texts: list[str]) -> str:
    """Return one text for several of one shape."""
    spans = []
    for column in zip(*(NUMBER.findall(text) for text in texts), strict=True):
        least, most = (choose(column, key=lambda each: float(each.replace(",", ""))) for choose in (min, max))
        spans.append(least if least == most else f"{least} to {most}")
    return NUMBER.sub(lambda _: spans.pop(0), texts[0])


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Torture(), "stepwell-torture")
