"""The buttons of a form, and what they do when they are pressed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from hashlib import blake2s
from typing import Any, NamedTuple

from stepwell.fsm.conversation.context import Context
from stepwell.fsm.forms.answers import Choice, Question
from stepwell.fsm.forms.keyboards import DATA_LIMIT, button, keyboard
from stepwell.fsm.forms.wording import Wording

__all__ = ["Action", "FormButtons"]

#: Characters of the buttons in one row.
ROW_LIMIT = 24


class Action(NamedTuple):
    """The meaning of a button: what to do, and the question that it belongs to."""

    name: str
    question: Question | None
    choice: Choice | None = None


class FormButtons:
    """The buttons of one form. Their data begins with the name of the form and a colon."""

    __slots__ = ("_form", "_questions", "_wording", "actions")

    def __init__(self, form: str, questions: Mapping[str, Question], wording: Wording) -> None:
        self._form = form
        self._questions = questions
        self._wording = wording
        #: The meaning of each button by its data, without that of ``confirm``.
        self.actions: dict[str, Action] = {
            self._data("", each): Action(each, None) for each in ("edit", "cancel", "summary")
        }
        for name, question in questions.items():
            for each in ("skip", "back", "cancel", "change"):
                self.actions[self._data(name, each)] = Action(each, question)
            for choice in question.choices:
                self.actions[self._data(name, f"={choice.key}")] = Action("choice", question, choice)

    def of_question(self, ctx: Context[Any], question: Question, *, back: bool) -> dict[str, Any]:
        """Return the keyboard of a question: its choices, and the moves. ``back``: with a button to go back."""
        name = question.name
        choices = [
            button(self._wording.choice(ctx, question, choice), data=self._data(name, f"={choice.key}"))
            for choice in question.choices
        ]
        moves = ["skip"] if question.default is not None else []
        moves += ["back", "cancel"] if back else ["cancel"]
        controls = [button(self._wording.text(ctx, move), data=self._data(name, move)) for move in moves]
        return keyboard([*_rows(choices), controls])

    def of_summary(self, ctx: Context[Any]) -> dict[str, Any]:
        """Return the keyboard of the summary."""
        others = [button(self._wording.text(ctx, each), data=self._data("", each)) for each in ("edit", "cancel")]
        return keyboard([[button(self._wording.text(ctx, "confirm"), data=self._confirm_data(ctx))], others])

    def of_fields(self, ctx: Context[Any]) -> dict[str, Any]:
        """Return the keyboard for choosing the answer to change."""
        fields = [button(self._wording.label(ctx, name), data=self._data(name, "change")) for name in self._questions]
        return keyboard([*_rows(fields), [button(self._wording.text(ctx, "back"), data=self._data("", "summary"))]])

    def is_pressed(self, ctx: Context[Any]) -> bool:
        """Return whether the update is a button of this form."""
        return (ctx.update.callback_data or "").startswith(f"{self._form}:")

    def confirms(self, data: str) -> bool:
        """Return whether this is the data of the confirm button of any summary."""
        return data.startswith(self._data("", "confirm:"))

    def confirms_present(self, ctx: Context[Any], data: str) -> bool:
        """Return whether this is the data of the confirm button of the present summary."""
        return data == self._confirm_data(ctx)

    def _confirm_data(self, ctx: Context[Any]) -> str:
        """Return the data of the confirm button. It belongs to one summary, so an older summary cannot be confirmed."""
        return self._data("", f"confirm:{zlib.crc32(self._wording.summary(ctx).encode()):x}")

    def _data(self, field: str, action: str) -> str:
        data = f"{self._form}:{field}:{action}"
        if len(data.encode()) > DATA_LIMIT:
            return f"{self._form}:{blake2s(data.encode(), digest_size=12).hexdigest()}"
        return data


def _rows(buttons: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return short buttons side by side, and long ones below each other."""
    rows: list[list[dict[str, Any]]] = []
    for each in buttons:
        if rows and sum(len(other["text"]) for other in rows[-1]) + len(each["text"]) <= ROW_LIMIT:
            rows[-1].append(each)
        else:
            rows.append([each])
    return rows
