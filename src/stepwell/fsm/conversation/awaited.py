"""A note for the error of a handler that awaits a method of its context, such as ``await ctx.answer(...)``."""

from __future__ import annotations

import linecache
import re

__all__ = ["explain_await"]

_AWAITED = re.compile(
    r"\bawait\s+(\w+\.(?:answer|answer_callback|call|edit|start_flow|transition|set_state|back|push_flow|pop_flow|"
    r"clear_flow|update_data|set_data|data_as))\("
)


def explain_await(error: BaseException) -> None:
    """Add a note to a ``TypeError`` if the line that raised it awaits a method that is not awaited."""
    trace = error.__traceback__
    if type(error) is not TypeError or trace is None or "await" not in str(error):
        return
    while trace.tb_next is not None:
        trace = trace.tb_next
    found = _AWAITED.search(linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno))
    if found is not None:
        error.add_note(
            f"{found[1]}() is not awaited; remove await. Of the methods of a context, only save() is awaited."
        )
