"""The report of ``benchmarks.comparison``: a table, JSON, and a plot as SVG and PNG."""

from __future__ import annotations

import math
import os
import platform
import time
from html import escape
from importlib import metadata
from pathlib import Path

from benchmarks.comparison_results import TITLES, UNITS, Comparison, Measured, figure, table
from benchmarks.performance_page import write_page

__all__ = ["plot", "report", "write_report"]

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
PEERS = ("aiogram", "python-telegram-bot", "langgraph", "dbos", "pocketflow", "redis", "asyncpg")


def write_report(results: list[Measured]) -> None:
    """Write the JSON, and from it the table, the page of the site and the plots."""
    machine = (
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, {platform.system()}"
    )
    day = time.strftime("%Y-%m-%d", time.gmtime())
    run = Comparison(day, machine, {name: metadata.version(name) for name in PEERS}, results)
    run.save()
    (HERE / "RESULTS.md").write_text(report(run))
    write_page()
    svg = plot(run)
    (IMAGES / "comparison.svg").write_text(svg)
    write_png(svg, IMAGES / "comparison.png")


def report(run: Comparison) -> str:
    """Return ``RESULTS.md``."""
    text = [
        "# Results",
        "",
        f"Written by `make bench` on {run.day}: {run.machine}. The subjects took turns, each in a process of its own. "
        f"{run.packages}.",
        "",
        "The machine's speed matters less than the ratios. A subject whose stored result does not contain every update "
        "is marked as wrong.",
    ]
    for workload, title in TITLES.items():
        text += ["", f"## {title}", "", *table(run, workload)]
    return "\n".join(text) + "\n"


WIDTH, LABEL, BAR, ROW, GAP = 890, 350, 400, 26, 54


def plot(run: Comparison) -> str:
    """Return horizontal bars, on a logarithmic scale, because the subjects differ by factors of a hundred."""
    parts: list[str] = []
    y = 10
    for workload, title in TITLES.items():
        rows = run.of(workload)
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
