"""The fast path for one write with parts: composes the statement of ``fast_parts.sql`` for the write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from stepwell.record import KEEP, Version
from stepwell.storage.operations import Applied, Apply, Guard, Result
from stepwell.storage.postgres.rows import LARGE, escaped_part, small_fields
from stepwell.storage.reference import weight

__all__ = ["PartsWrite", "parts_applied"]

#: Up to so many parts are single arguments. asyncpg checks each item of a list against several abstract base classes.
_FEW: Final = 4
#: The arguments of every statement, and those of each option, in their order.
_ARGUMENTS: Final = ("lane", "number", "time", "namespace", "key", "write", "size", "parts_size", "limit")
_OPTIONS: Final = {
    "expiry": ("expiry",),
    "token": ("token", "keep", "lease"),
    "fields": ("fields",),
    "base": ("base",),
    "version": ("version", "version_write"),
    "checked": (),
}
#: After a write has failed because a part exists, so many writes look for existing parts first. That takes a tenth of
#: their time, but each failed write is an error in the server's log.
_CHECKED: Final = 1_000
_UNGUARDED: Final = Guard()


class PartsWrite:
    """The statements of one schema for writes with parts."""

    def __init__(self, schema: str) -> None:
        text = (files("stepwell.storage.postgres") / "fast_parts.sql").read_text("utf-8")
        self._template = text.replace("@schema@", schema)
        #: By the options of the write, and the number of its parts if they are few.
        self.statements: dict[tuple[tuple[bool, ...], int], str] = {}
        #: How many of the next writes look for existing parts first.
        self._checked = 0

    def expect_existing(self) -> None:
        """Let the next writes look for existing parts first, because a write has failed."""
        self._checked = _CHECKED

    def statement(self, operation: Apply) -> tuple[str, list[Any]] | None:
        """Return the statement of a write and its arguments after lane, number and time.

        Returns ``None`` if only the function can run the write.
        """
        (namespace, key), change, guard = operation.address, operation.change, operation.guard or _UNGUARDED
        token, base, version = guard.token, guard.base, guard.version
        fields, expiry = change.set, change.expiry
        if (
            operation.returning
            or guard.absent
            or change.replace
            or change.delete
            or change.unset
            or change.drop is not None
            or change.head is not KEEP
            or change.tags is not KEEP
            or change.deadline is not KEEP
            or change.memo is not KEEP
            or change.queue is not KEEP
            or (fields and max(map(len, fields.values())) > LARGE)
        ):
            return None
        names, bodies, added = [], [], 0
        for part, body in change.parts.items():
            if body is None:
                return None
            name = escaped_part(part)
            names.append(name)
            bodies.append(body)
            added += weight(name, body)
        data, size = small_fields(fields) if fields else (None, 0)
        args: list[Any] = [namespace, key, change.write, size + added, added, change.limit]
        if expiry is not KEEP:
            args.append(expiry)
        if token is not None:
            args += (token, operation.then == "keep", operation.lease)
        if data is not None:
            args.append(data)
        if base is not None:
            args.append(base)
        if version is not None:
            args += version
        few = len(names) if len(names) <= _FEW else 0
        args += (*names, *bodies) if few else (names, bodies)
        checked = self._checked > 0
        if checked:
            self._checked -= 1
        options = (
            expiry is not KEEP, token is not None, data is not None, base is not None, version is not None, checked,
        )  # fmt: skip
        sql = self.statements.get((options, few))
        if sql is None:
            sql = self.statements[options, few] = self._composed(dict(zip(_OPTIONS, options, strict=True)), few)
        return sql, args

    def _composed(self, options: dict[str, bool], few: int) -> str:
        """Return the statement for some options."""

        def line(found: re.Match[str]) -> str:
            unwanted, option, text = found.groups()
            return "" if {**options, "few": bool(few)}[option] == bool(unwanted) else f"{text}\n"

        def number(found: re.Match[str]) -> str:
            return f"${order.index(found[1]) + 1}"

        order = [*_ARGUMENTS]
        for option, arguments in _OPTIONS.items():
            order += arguments if options[option] else ()
        names, bodies = ([f"{kind}_{at}" for at in range(few)] for kind in ("name", "body"))
        order += [*names, *bodies] if few else ["names", "bodies"]
        text = re.sub(r"^ *\[(no )?(\w+)\] (.*)\n", line, self._template, flags=re.MULTILINE)
        among = f"in ({', '.join([f'${name}' for name in names])})" if few else "= any ($names)"
        text = text.replace("@among@", among)
        rows = [f"(${name}::text, ${body}::text)" for name, body in zip(names, bodies, strict=True)]
        return re.sub(r"\$(\w+)", number, text.replace("@parts@", ", ".join(rows)))


def parts_applied(operations: Sequence[Any], rows: Sequence[Any]) -> list[Result] | None:
    """Return the result of the statement, or ``None`` if the function must run the write."""
    if not rows:
        return None
    ((version, now, base),) = rows
    return [Applied(version=Version(version, operations[0].change.write), base=base, now=now)]
