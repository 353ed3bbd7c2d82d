"""The wording of a form: its texts, and their replacements."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from string import Formatter
from types import MappingProxyType
from typing import Any, TypeAlias

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption
from stepwell.fsm.conversation.context import Context
from stepwell.fsm.forms.answers import Choice, Question

__all__ = ["STRINGS", "TEXT_LIMIT", "Strings", "Text", "Wording", "check_names"]

#: A text, or a ``def`` function of the context that returns one.
Text: TypeAlias = str | Callable[[Context[Any]], str]
#: Replacements for the strings of a form: by id, or a function of the context and the id. ``None`` keeps the default.
Strings: TypeAlias = Mapping[str, str] | Callable[[Context[Any], str], str | None]

#: The Bot API's limit of a message, in characters, and the longest value in a summary.
TEXT_LIMIT, VALUE_LIMIT = 4096, 200

STRINGS: Mapping[str, str] = MappingProxyType(
    {
        "question": "{label}?",
        "summary": "Please check your answers:\n\n{answers}",
        "answer": "{label}: {value}",
        "none": "-",
        "which": "Which answer do you want to change?",
        "done": "Thank you.",
        "cancelled": "Cancelled.",
        "reminder": "Are you still there? {question}",
        "yes": "Yes",
        "no": "No",
        "skip": "Skip",
        "back": "Back",
        "cancel": "Cancel",
        "confirm": "Confirm",
        "edit": "Edit",
        "first": "This is the first question.",
        "required": "This question needs an answer.",
        "outdated": "This button is outdated.",
        "bad_text": "Please send a text.",
        "bad_value": "This is not a valid answer. {problem}",
        "bad_int": "Please send a whole number, such as 42.",
        "bad_number": "Please send a number, such as 3.5.",
        "bad_date": "Please send a date, such as 2026-12-31.",
        "bad_datetime": "Please send a date and time, such as 2026-12-31 18:30.",
        "bad_time": "Please send a time, such as 18:30.",
        "bad_choice": "Please choose one of the buttons.",
    }
)


#: Parts of the summary, which are not sent alone.
_MAY_BE_EMPTY = ("answer", "none")


class Wording:
    """The texts of one form."""

    def __init__(self, questions: Mapping[str, Question], ask: Mapping[str, Text], strings: Strings) -> None:
        self._questions = questions
        self._ask = ask
        self._strings = strings
        for name, question in ask.items():
            if not isinstance(question, str) and not _is_function(question):
                raise InvalidOption(
                    f"ask={{{quoted(name)}: ...}} takes a text or a def function of the context, got {quoted(question)}"
                )
            if isinstance(question, str):
                _check_not_empty("ask", name, question)
        if isinstance(strings, Mapping):
            own = [f"{each}.{name}" for name in questions for each in ("ask", "label", "bad")]
            own += [f"choice.{each.name}.{choice.key}" for each in questions.values() for choice in each.choices]
            check_names("strings", strings, [*STRINGS, *own])
            for string, text in strings.items():
                _check_string(string, text)
            for each in questions.values():
                for choice in each.choices:
                    if not choice.label.strip() and f"choice.{each.name}.{choice.key}" not in strings:
                        raise InvalidOption(
                            f"{quoted(each.name)} has the choice {quoted(choice.value)}, and a button needs a text; "
                            f"pass strings={{'choice.{each.name}.{choice.key}': ...}}"
                        )
        elif not _is_function(strings):
            raise InvalidOption("strings= takes a mapping, or a def function of the context and the id of a string")

    def text(self, ctx: Context[Any], string: str, **values: str) -> str:
        """Return the string with this id."""
        text = self._replaced(ctx, string)
        return (STRINGS[string] if text is None else text).format(**values)[:TEXT_LIMIT]

    def question(self, ctx: Context[Any], question: Question) -> str:
        """Return the text that asks for a field."""
        own, ask = self._replaced(ctx, f"ask.{question.name}"), self._ask.get(question.name)
        if own is not None:
            return own
        if ask is None:
            return self.text(ctx, "question", label=self.label(ctx, question.name))
        if isinstance(ask, str):
            return ask
        asked = ask(ctx)
        if not isinstance(asked, str) or not asked.strip():
            raise InvalidOption(
                f"ask={{{quoted(question.name)}: ...}} must return a text that is not empty, got {quoted(asked)}"
            )
        return asked

    def label(self, ctx: Context[Any], name: str) -> str:
        """Return the name of a field for the user."""
        label = self._replaced(ctx, f"label.{name}")
        return name.replace("_", " ").strip().capitalize() if label is None else label

    def choice(self, ctx: Context[Any], question: Question, choice: Choice) -> str:
        """Return the text of a choice's button."""
        label = self._replaced(ctx, f"choice.{question.name}.{choice.key}")
        if label is not None:
            return label
        return self.text(ctx, choice.key) if question.kind is bool else choice.label

    def chosen(self, ctx: Context[Any], question: Question, text: str) -> Choice | None:
        """Return the choice that a user has typed instead of pressing its button."""
        for choice in question.choices:
            value = choice.value.value if isinstance(choice.value, Enum) else choice.value
            names = (self.choice(ctx, question, choice), choice.key, str(value))
            if text.casefold() in (each.casefold() for each in names):
                return choice
        return None

    def refusal(self, ctx: Context[Any], question: Question, string: str, problem: str) -> str:
        """Return the answer to bad input."""
        own = self._replaced(ctx, f"bad.{question.name}")
        text = self.text(ctx, string, problem=problem) if own is None else own.format(problem=problem)
        return text.strip()

    def summary(self, ctx: Context[Any]) -> str:
        """Return all answers."""
        lines = [
            self.text(ctx, "answer", label=self.label(ctx, name), value=self._value(ctx, question))
            for name, question in self._questions.items()
        ]
        return self.text(ctx, "summary", answers="\n".join(lines))

    def _value(self, ctx: Context[Any], question: Question) -> str:
        value = ctx.data.get(question.name)
        for choice in question.choices:
            if choice.value == value and type(choice.value) is type(value):
                return self.choice(ctx, question, choice)
        text = self.text(ctx, "none") if value is None else str(value)
        return text if len(text) <= VALUE_LIMIT else f"{text[: VALUE_LIMIT - 1]}…"

    def _replaced(self, ctx: Context[Any], string: str) -> str | None:
        return self._strings.get(string) if isinstance(self._strings, Mapping) else self._strings(ctx, string)


def check_names(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ``InvalidOption`` for a name that is not known."""
    names = list(known)
    for name in given:
        if name not in names:
            near = get_close_matches(str(name), names, n=1)
            hint = f"did you mean {quoted(near[0])}?" if near else f"the names are {', '.join(names)}"
            raise InvalidOption(f"{option}= has {quoted(name)}, which the form does not have; {hint}")


def _check_string(string: str, text: object) -> None:
    """Raise ``InvalidOption`` for a replacement that is empty or has an unknown field. Other types are the author's."""
    if not isinstance(text, str):
        return
    if string not in _MAY_BE_EMPTY:
        _check_not_empty("strings", string, text)
    kind = string.partition(".")[0]
    if kind in ("ask", "label", "choice"):
        # These are not formatted.
        return
    fields = {name for _, name, _, _ in Formatter().parse(STRINGS.get(string, "")) if name}
    if kind.startswith("bad") or kind == "required":
        fields.add("problem")
    try:
        text.format(**dict.fromkeys(fields, ""))
    except (LookupError, ValueError, AttributeError):
        known = ", ".join(f"{{{name}}}" for name in sorted(fields)) or "none"
        raise InvalidOption(
            f"strings= has {quoted(string)} with the text {quoted(text)}, which cannot be formatted; its "
            f"fields are: {known}. "
            "Write a brace as {{ or }}"
        ) from None


def _check_not_empty(option: str, name: str, text: str) -> None:
    if not text.strip():
        raise InvalidOption(f"{option}= has an empty text for {quoted(name)}, which Telegram refuses")


def _is_function(given: object) -> bool:
    return callable(given) and not inspect.iscoroutinefunction(given)
