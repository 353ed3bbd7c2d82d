"""The report of ``benchmarks.comparison``: a table, JSON, and a plot as SVG and PNG."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from html import escape
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.comparison import Measured

__all__ = ["write_report"]

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
PEERS = ("aiogram", "python-telegram-bot", "langgraph", "dbos", "pocketflow", "redis", "asyncpg")
TITLES = {
    "updates": "A counting bot: 50 users, each with two messages in flight",
    "steps": "A flow of 400 steps, each stored before the next one begins",
}
UNITS = {"updates": "updates a second", "steps": "steps a second"}


def write_report(results: list[Measured], rounds: int) -> None:
    """Write the table, the JSON and the plots."""
    machine = (
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, {platform.system()}"
    )
    day = time.strftime("%Y-%m-%d", time.gmtime())
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PEERS)
    text = [
        "# Results",
        "",
        f"Written by `make bench` on {day}: {machine}. Medians of {rounds} rounds, in which the subjects took turns, "
        f"each in a process of its own; lowest and highest in brackets. {versions}.",
        "",
        "The machine's speed matters less than the ratios. A subject whose stored result does not contain every update "
        "is marked as wrong.",
    ]
    for workload, title in TITLES.items():
        text += ["", f"## {title}", "", f"| | storage | {UNITS[workload]} | result |", "| --- | --- | --- | --- |"]
        for result in results:
            if result.workload == workload:
                spread = f"{figure(result.median)} ({figure(min(result.rates))} to {figure(max(result.rates))})"
                verdict = "right" if result.right else f"**wrong**: {result.kept:.0%} kept"
                text.append(f"| {result.subject} | {result.storage} | {spread} | {verdict} |")
    (HERE / "RESULTS.md").write_text("\n".join(text) + "\n")
    figures = [result._asdict() | {"median": result.median, "right": result.right} for result in results]
    (HERE / "results.json").write_text(
        json.dumps({"day": day, "machine": machine, "results": figures}, indent=1) + "\n"
    )
    svg = plot(results)
    (IMAGES / "comparison.svg").write_text(svg)
    write_png(svg, IMAGES / "comparison.png")


def figure(rate: float) -> str:
    """Return a rate with two or three significant digits."""
    digits = 2 - math.floor(math.log10(rate))
    return f"{round(rate, digits):,.0f}"


WIDTH, LABEL, BAR, ROW, GAP = 890, 350, 400, 26, 54


def plot(results: list[Measured]) -> str:
    """Return horizontal bars, on a logarithmic scale, because the subjects differ by factors of a hundred."""
    parts: list[str] = []
    y = 10
    for workload, title in TITLES.items():
        rows = [result for result in results if result.workload == workload]
        least, most = min(row.median for row in rows) / 2, max(row.median for row in rows)
        parts.append(f'<text x="0" y="{y + 16}" class="title">{escape(title)}</text>')
        y += 30
        for row in sorted(rows, key=lambda row: -row.median):
            length = BAR * math.log(row.median / least) / math.log(most / least)
            kind = "ours" if "Stepwell" in row.subject else "theirs"
            note = figure(row.median) + ("" if row.right else f", wrong: {row.kept:.0%} kept")
            name = f"{row.subject}, {row.storage.partition(',')[0]}"
            parts += [
                f'<text x="{LABEL - 8}" y="{y + 17}" class="label">{escape(name)}</text>',
                f'<rect x="{LABEL}" y="{y + 4}" width="{length:.0f}" height="{ROW - 8}" rx="3" '
                f'class="{kind if row.right else "wrong"}"/>',
                f'<text x="{LABEL + length + 8:.0f}" y="{y + 17}" class="value">{escape(note)}</text>',
            ]
            y += ROW
        parts.append(f'<text x="{LABEL}" y="{y + 16}" class="unit">{UNITS[workload]}, logarithmic scale</text>')
        y += GAP
    style = (
        "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600;font-size:15px}.label{text-anchor:end}"
        ".unit{fill:#57606a;font-size:11px}.ours{fill:#0a7d55}.theirs{fill:#8c959f}.wrong{fill:#d1242f}"
        ".ground{fill:#fff}"
    )
    box = f'viewBox="-16 0 {WIDTH + 32} {y}" width="{WIDTH + 32}" height="{y}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="Stepwell beside its peers">'
        f'<style>{style}</style><rect x="-16" width="{WIDTH + 32}" height="{y}" class="ground"/>'
        f"{''.join(parts)}</svg>\n"
    )


def write_png(svg: str, path: Path) -> None:
    """Let the browser of the tests draw the picture."""
    import asyncio

    from tests.playground.browser import launched

    async def draw() -> None:
        async with launched() as browser:
            page = await browser.new_page(device_scale_factor=2)
            await page.set_content(f"<body style='margin:0'>{svg}</body>")
            await page.locator("svg").screenshot(path=str(path))

    asyncio.run(draw())
