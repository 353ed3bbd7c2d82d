"""A text pipeline: three nodes, one shared state, and an edge for an empty text."""

from __future__ import annotations

from typing import Any

from stepwell.nodes import Node, NodeFlow


class Split(Node):
    def prep(self, shared: dict[str, Any]) -> str:
        return str(shared["text"])

    def exec(self, text: str) -> list[str]:
        return text.lower().split()

    def post(self, shared: dict[str, Any], text: str, words: list[str]) -> str:
        shared["words"] = words
        return "default" if words else "empty"


class Count(Node):
    def prep(self, shared: dict[str, Any]) -> list[str]:
        return list(shared["words"])

    def exec(self, words: list[str]) -> dict[str, int]:
        return {word: words.count(word) for word in sorted(set(words))}

    def post(self, shared: dict[str, Any], words: list[str], counts: dict[str, int]) -> tuple[None, dict[str, Any]]:
        return None, {"counts": counts}


class Report(Node):
    def post(self, shared: dict[str, Any], prep_res: None, exec_res: None) -> None:
        lines = [f"{count} x {word}" for word, count in shared.get("counts", {}).items()]
        shared["report"] = "\n".join(lines) or "nothing to count"


flow = (
    NodeFlow(name="words")
    .connect(Split, Count)
    .connect(Count, Report)
    .connect(Split, Report, action="empty")
    .start(Split)
)

if __name__ == "__main__":
    print(flow.run_sync({"text": "the well the step the water"})["report"])
    print(flow.diagram())
