"""The corpus: updates in the form of the Bot API, at least one of every kind."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Case:
    """One update and its expected chat, thread and user."""

    kind: str
    name: str
    #: The entry of the published table that it belongs to.
    row: str
    c: int | None
    t: int | None
    u: int | None
    #: The thread when only forum topics count.
    strict_t: int | None
    business: str | None
    json: str

    @property
    def update(self) -> dict[str, Any]:
        """Return a copy, because frameworks change the dicts that they parse."""
        return dict(json.loads(self.json))

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


def _case(kind: str, entry: dict[str, Any]) -> Case:
    numbers = {name: entry.get(name) for name in ("c", "t", "u", "business")}
    return Case(
        kind=kind,
        name=entry["case"],
        row=entry["row"],
        strict_t=entry.get("strict_t", entry.get("t")),
        json=json.dumps(entry["update"]),
        **numbers,
    )


CASES = [
    _case(path.stem, entry)
    for path in sorted(CORPUS.glob("*.json"))
    for entry in json.loads(path.read_text(encoding="utf-8"))
]


def find(kind: str, name: str) -> dict[str, Any]:
    """Return a copy of one update of the corpus."""
    (case,) = [case for case in CASES if (case.kind, case.name) == (kind, name)]
    return copy.deepcopy(case.update)
