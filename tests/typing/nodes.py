"""The types of node flows. Nothing runs here: mypy checks it in ``make check``.

An ignore that is not needed is an error, so each ignore proves that mypy finds the mistake.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, assert_type

from stepwell.nodes import END, BatchNode, Failed, Node, NodeFlow, linear, parallel


class CountWords(Node[str, int]):
    def prep(self, shared: dict[str, Any]) -> str:
        return str(shared["text"])

    def exec(self, text: str) -> int:
        return len(text.split())

    def exec_fallback(self, text: str, error: Exception) -> int:
        return 0

    def post(self, shared: dict[str, Any], text: str, count: int) -> tuple[str, dict[str, int]]:
        return "default", {"words": count}


class Fetch(Node[str, bytes]):
    async def prep(self, shared: Any) -> str:
        return "https://example.org"

    async def exec(self, url: str) -> bytes:
        return url.encode()

    async def post(self, shared: Any, url: str, body: bytes) -> Any:
        return END if body else "retry"


class WrongResult(Node[str, int]):
    def exec(self, text: str) -> str:  # type: ignore[override]
        return text


class WrongInput(Node[str, int]):
    def exec(self, number: int) -> int:  # type: ignore[override]
        return number


class WrongAction(Node):
    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> int:  # type: ignore[override]
        return 1


class Plain(Node):
    """Without parameters every result is ``Any``, and mypy --strict does not complain."""

    def prep(self, shared: Any) -> list[int]:
        return [1]

    def exec(self, numbers: list[int]) -> int:
        return sum(numbers)

    def post(self, shared: Any, numbers: list[int], total: int) -> None:
        shared["total"] = total


class Lengths(BatchNode[str, int]):
    def prep(self, shared: Any) -> Iterator[str]:
        yield from shared["lines"]

    def exec(self, line: str) -> int:
        return len(line)

    def post(self, shared: Any, lines: Any, lengths: list[int]) -> str:
        return "long" if max(lengths) > 80 else "short"


class Skips(BatchNode[str, int | Failed]):
    async def prep(self, shared: Any) -> AsyncIterator[str]:
        for line in shared["lines"]:
            yield line

    async def exec(self, line: str) -> int:
        return int(line)

    def post(self, shared: Any, lines: Any, results: list[int | Failed]) -> None:
        shared["failed"] = [result.item for result in results if isinstance(result, Failed)]


class WrongItem(BatchNode[str, int]):
    def exec(self, item: bytes) -> int:  # type: ignore[override]
        return len(item)


def types_of_calls(base: Node[str, int], count: CountWords, lengths: Lengths) -> None:
    assert_type(base.exec("a b"), int | Awaitable[int])
    assert_type(Node().exec(1), Any | Awaitable[Any])
    assert_type(count.max_retries, int)
    assert_type(count.timeout, float | None)
    assert_type(lengths.concurrency, int)
    count.wait = 0.5
    count.wait = "long"  # type: ignore[assignment]


def types_of_flows() -> None:
    assert_type(CountWords() >> Plain(), Plain)
    flow = linear(CountWords, Plain(), parallel(Fetch, Lengths), name="words", max_steps=10)
    assert_type(flow, NodeFlow)
    assert_type(flow.run_sync({"text": "a b"}), dict[str, Any])
    linear(CountWords, max_step=10)  # type: ignore[call-arg]
    flow.run_sync(if_exists="restart")  # type: ignore[call-overload]
