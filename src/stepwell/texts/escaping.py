"""Texts with markup, in which values are escaped: for HTML, and for MarkdownV2."""

from __future__ import annotations

import re
from collections.abc import Callable
from string import Formatter
from typing import Any

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption

__all__ = ["html", "md"]

#: Telegram wants no other characters of a text escaped.
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
_MARKDOWN = re.compile(r"([\\_*\[\]()~`>#+\-=|{}.!])")


def html(template: Any, /, **values: Any) -> str:
    """Return a text for ``parse_mode="HTML"``, with the values escaped.

    ``template`` is a text with fields, or a t-string of Python 3.14. The field ``{name:safe}`` is not escaped: use it
    for what ``html`` has returned.

    Example::

        @router.on(text())
        async def greet(ctx):
            ctx.answer(html("Hello, <b>{name}</b>!", name=ctx.text), parse_mode="HTML")
    """
    return _filled(template, values, lambda text: "".join(_HTML.get(each, each) for each in text))


def md(template: Any, /, **values: Any) -> str:
    """Return a text for ``parse_mode="MarkdownV2"``, with the values escaped; see ``html``.

    Example::

        assert md("*{name}*", name="a_b.") == r"*a\\_b\\.*"
    """
    return _filled(template, values, lambda text: _MARKDOWN.sub(r"\\\1", text))


def _filled(template: Any, values: dict[str, Any], escape: Callable[[str], str]) -> str:
    if isinstance(template, str):
        return _Escaping(escape).vformat(template, (), values)
    if not hasattr(template, "interpolations"):
        raise InvalidOption(
            f"pass a text with fields, html('<b>{{name}}</b>', name=...), or a t-string, not {quoted(template)}"
        )
    # A t-string is a sequence of texts and interpolations.
    formatter = _Escaping(escape)
    return "".join(
        part
        if isinstance(part, str)
        else formatter.format_field(formatter.convert_field(part.value, part.conversion), part.format_spec)
        for part in template
    )


class _Escaping(Formatter):
    def __init__(self, escape: Callable[[str], str]) -> None:
        self._escape = escape

    def format_field(self, value: Any, format_spec: str) -> str:
        return str(value) if format_spec == "safe" else self._escape(format(value, format_spec))

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        if key not in kwargs:
            raise InvalidOption(f"the template has the field {quoted(key)}, which is not passed; write {key}=...")
        return kwargs[key]
