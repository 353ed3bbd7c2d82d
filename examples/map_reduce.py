"""Map and reduce over files: a batch in threads, with a progress bar, that skips unreadable files."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from stepwell.nodes import BatchNode, Failed, Node, ProgressBar, linear


class CountWords(BatchNode):
    """Map: one file to the counts of its words. A ``def exec`` runs in threads, here eight at once."""

    def prep(self, shared: dict[str, Any]) -> list[Path]:
        return sorted(Path(shared["folder"]).glob("*.txt"))

    def exec(self, path: Path) -> Counter[str]:
        return Counter(path.read_text(encoding="utf-8").lower().split())

    def post(self, shared: dict[str, Any], paths: list[Path], results: list[Any]) -> None:
        shared["counts"] = [result for result in results if not isinstance(result, Failed)]
        shared["unreadable"] = [result.item.name for result in results if isinstance(result, Failed)]


class AddUp(Node):
    """Reduce: all counts to one."""

    def prep(self, shared: dict[str, Any]) -> list[Counter[str]]:
        return list(shared["counts"])

    def exec(self, counts: list[Counter[str]]) -> Counter[str]:
        return sum(counts, Counter())

    def post(self, shared: dict[str, Any], counts: list[Counter[str]], total: Counter[str]) -> None:
        shared["total"] = total


flow = linear(CountWords(max_retries=2, concurrency=8, on_error="skip"), AddUp, name="map-reduce")

if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "."
    final = flow.run_sync({"folder": folder}, on_event=ProgressBar())
    print(final["total"].most_common(5), "unreadable:", final["unreadable"])
