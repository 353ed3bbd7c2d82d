"""Forms: a flow made from a model, with one question for each field.

It uses only flows, routers, filters and keyboards, as a form of your own would.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from enum import Enum
from types import new_class
from typing import Any, ClassVar, Generic, TypeVar

from stepwell import _portal
from stepwell._secrets import quoted
from stepwell.codec import ensure_registered
from stepwell.errors import FieldError, IncompleteData, InvalidOption, UsageError
from stepwell.fsm import filters
from stepwell.fsm.conversation.context import Context
from stepwell.fsm.flows import typed
from stepwell.fsm.flows.flow import Flow, state
from stepwell.fsm.forms.answers import Question, fields_of, questions_of
from stepwell.fsm.forms.buttons import Action, FormButtons
from stepwell.fsm.forms.wording import STRINGS, TEXT_LIMIT, Strings, Text, Wording, check_names
from stepwell.fsm.router import Router

__all__ = ["Form"]

T = TypeVar("T")
CONFIRM = "confirm"
#: The longest name of a form, so that button data has room for a field and a choice.
NAME_LIMIT = 32


class Form(Generic[T]):
    """A flow made from a dataclass, msgspec Struct or pydantic model, which asks one question for each field::

        form = Form(Person, name="register", command="register", ask={"name": "What's your name?"}, on_done=save)
        router = Router(FSM("my_bot", storage="sqlite:///bot.db", flows=[form.flow]))
        router.include(form.router)

    - ``ask``: the question of a field, a text or a function of the context. ``fields``: the fields to ask for, in
      their order; the default is all.
    - ``on_done(ctx, value)``: gets the object after the user has confirmed the summary, when the flow has ended. With
      ``confirm=False`` there is no summary.
    - ``validate``: a function ``(ctx, value)`` for a field. It returns ``False``, or raises ``ValueError`` with a text
      for the user, to refuse a value. ``parse``: a function of the text that returns the value, or raises
      ``ValueError``.
    - ``command``: the command that starts the form. Without it, a handler calls ``form.start(ctx)``.
    - ``idle``: seconds without an update after which ``on_idle(ctx)`` is called; the default repeats the question.
    - ``strings``: replacements for texts, see ``Form.STRINGS``. A question, a label, a choice and the answer to bad
      input have the ids ``ask.email``, ``label.email``, ``choice.plan.free`` and ``bad.email``.

    ``on_done``, ``on_idle`` and validators may be ``def`` or ``async def``.
    """

    #: The texts by id.
    STRINGS: ClassVar[Mapping[str, str]] = STRINGS

    def __init__(
        self,
        model: type[T],
        *,
        name: str,
        ask: Mapping[str, Text] | None = None,
        on_done: Callable[[Context[Any], T], Any] | None = None,
        fields: Iterable[str] | None = None,
        validate: Mapping[str, Callable[[Context[Any], Any], Any]] | None = None,
        parse: Mapping[str, Callable[[str], Any]] | None = None,
        command: str | None = None,
        confirm: bool = True,
        idle: float | timedelta | None = None,
        on_idle: Callable[[Context[Any]], Any] | None = None,
        strings: Strings | None = None,
    ) -> None:
        if not isinstance(name, str) or not name or len(name.encode()) > NAME_LIMIT or ":" in name:
            raise InvalidOption(f"Form(name={quoted(name)}): the name must have 1 to {NAME_LIMIT} bytes, and no colon")
        self.model: type[T] = model
        self.name: str = name
        self._on_done = on_done
        self._validate = dict(validate or {})
        self._parse = dict(parse or {})
        self._confirm = confirm
        chosen = None if fields is None else tuple(fields)
        asked = dict(ask or {})
        known = fields_of(model)
        check_names("fields", chosen or (), known)
        check_names("ask", asked, known)
        for option, functions in (("validate", self._validate), ("parse", self._parse)):
            check_names(option, functions, known)
            for field, function in functions.items():
                if not callable(function) or (option == "parse" and inspect.iscoroutinefunction(function)):
                    what = "a def function of the text" if option == "parse" else "a function (ctx, value)"
                    raise InvalidOption(f"{option}={{{quoted(field)}: ...}} takes {what}, got {quoted(function)}")
        self._questions = {each.name: each for each in questions_of(model, chosen, self._parse)}
        self._wording = Wording(self._questions, asked, {} if strings is None else strings)
        self._buttons = FormButtons(name, self._questions, self._wording)
        for question in self._questions.values():
            if isinstance(question.kind, type) and issubclass(question.kind, Enum):
                ensure_registered(question.kind, f"{name}.{question.kind.__name__}")
        #: The flow, for ``FSM(flows=[form.flow])``. It has a state ``ask_<field>`` for each field, and ``confirm``.
        self.flow: type[Flow] = self._made_flow(idle, on_idle)
        #: The handlers, for ``router.include(form.router)``.
        self.router: Router = self._made_router(command)

    def start(self, ctx: Context[Any], **known: Any) -> Any:
        """Begin the form, and ask the first question. Fields in ``known`` are not asked for.

        Returns ``True``, or the result of ``on_invalid_transition`` if another flow is active.

        Raises ``UsageError`` if all fields are known.
        """
        started = ctx.start_flow(self.flow)
        if started is True:
            ctx.update_data(known)
            following = self._next_state(ctx)
            if following is None:
                raise UsageError(f"the form {quoted(self.name)} has nothing to ask, because all fields are known")
            ctx.set_state(following)
            self.repeat(ctx)
        return started

    def repeat(self, ctx: Context[Any]) -> None:
        """Send the present question, or the summary, again."""
        self._answer(ctx, self._shown(ctx))

    def cancel(self, ctx: Context[Any]) -> None:
        """End the form without a result."""
        ctx.clear_flow()
        self._answer(ctx, (self._wording.text(ctx, "cancelled"), None))

    # Handlers

    async def _cancelled(self, ctx: Context[Any]) -> None:
        self.cancel(ctx)

    async def _wrote(self, ctx: Context[Any]) -> None:
        """Handle a message in the flow."""
        question = self._question(ctx)
        if question is None:
            # The summary again, or the next question if a release has changed the fields.
            await self._go_on(ctx)
        elif ctx.text is None or not ctx.text.strip() or not _is_storable(ctx.text):
            self._refuse(ctx, question, "bad_text")
        else:
            await self._read(ctx, question, ctx.text.strip())

    async def _read(self, ctx: Context[Any], question: Question, text: str) -> None:
        """Read the value of an answer from its text."""
        value: Any
        bad: str | None = None
        if question.name in self._parse:
            try:
                value = self._parse[question.name](text)
            except ValueError:
                bad = "bad_value"
        elif question.choices:
            choice = self._wording.chosen(ctx, question, text)
            value, bad = ("", "bad_choice") if choice is None else (choice.value, None)
        else:
            value, bad = question.read(text)
        if bad is not None:
            self._refuse(ctx, question, bad)
        else:
            await self._accept(ctx, question, value)

    async def _accept(self, ctx: Context[Any], question: Question, value: Any) -> None:
        """Check the value of an answer, store it, and ask the next question."""
        try:
            typed.check_field(self.name, self.model, question.name, value)
        except FieldError as error:
            self._refuse(ctx, question, "bad_value", error.problem)
            return
        validate = self._validate.get(question.name)
        if validate is not None:
            try:
                accepted = await _portal.call_function(validate, ctx, value)
            except ValueError as error:
                problem = str(error)
                if problem.strip():
                    self._answer(ctx, (problem, self._question_buttons(ctx, question)))
                else:
                    self._refuse(ctx, question, "bad_value")
                return
            if accepted is False:
                self._refuse(ctx, question, "bad_value")
                return
        ctx.update_data({question.name: value})
        await self._go_on(ctx)

    async def _go_on(self, ctx: Context[Any]) -> None:
        """Ask for the first field that has no answer yet; at the end show the summary."""
        following = self._next_state(ctx)
        if following is None:
            await self._finish(ctx)
        else:
            # Known fields are left out, so this is not always a declared transition.
            ctx.set_state(following)
            self.repeat(ctx)

    async def _back(self, ctx: Context[Any]) -> None:
        """Ask the previous question again; while one answer is being changed, return to the summary."""
        question, previous = self._question(ctx), self._previous(ctx)
        if question is not None and self._confirm and not self._open_fields(ctx):
            ctx.set_state(CONFIRM)
            self.repeat(ctx)
        elif previous is None:
            self._answer(ctx, (self._wording.text(ctx, "first"), self._shown(ctx)[1]))
        else:
            del ctx.data[previous]
            ctx.set_state(_state_of(previous))
            self.repeat(ctx)

    async def _skip(self, ctx: Context[Any]) -> None:
        question = self._question(ctx)
        if question is None:
            self.repeat(ctx)
        elif question.default is None:
            self._refuse(ctx, question, "required")
        else:
            ctx.update_data({question.name: question.default()})
            await self._go_on(ctx)

    async def _pressed(self, ctx: Context[Any]) -> None:
        """Handle a button of this form."""
        data = ctx.update.callback_data or ""
        action = self._buttons.actions.get(data)
        confirms = self._buttons.confirms(data) and self._is_current(ctx, Action("confirm", None))
        if confirms and self._buttons.confirms_present(ctx, data):
            action = Action("confirm", None)
        if action is None or not self._is_current(ctx, action):
            ctx.answer_callback(self._wording.text(ctx, "outdated"))
            if confirms:
                # An older summary becomes the present one.
                await self._go_on(ctx)
            return
        ctx.answer_callback()
        question = action.question
        if action.name == "cancel":
            self.cancel(ctx)
        elif action.name == "back":
            await self._back(ctx)
        elif action.name == "skip":
            await self._skip(ctx)
        elif action.name == "choice" and question is not None and action.choice is not None:
            await self._accept(ctx, question, action.choice.value)
        elif action.name == "confirm":
            await self._finish(ctx)
        elif action.name == "edit":
            self._answer(ctx, (self._wording.text(ctx, "which"), self._buttons.of_fields(ctx)))
        elif action.name == "change" and question is not None:
            ctx.set_state(_state_of(question.name))
            self.repeat(ctx)
        else:
            self.repeat(ctx)

    async def _finish(self, ctx: Context[Any]) -> None:
        """Make the object, end the flow, and call ``on_done``."""
        summary = self._wording.summary(ctx)
        try:
            value = ctx.data_as(self.model)
        except IncompleteData as error:
            if error.missing:
                # A release has added the field.
                await self._go_on(ctx)
            else:
                self._explain(ctx, "\n".join(map(_plain, error.wrong.values())))
            return
        except ValueError as error:
            self._explain(ctx, str(error))
            return
        ctx.clear_flow()
        if self._buttons.is_pressed(ctx):
            # Removes the buttons.
            ctx.edit(summary)
        if self._on_done is None:
            ctx.answer(self._wording.text(ctx, "done"))
        else:
            await _portal.call_function(self._on_done, ctx, value)

    def _explain(self, ctx: Context[Any], problem: str) -> None:
        """Show why the model refuses the answers, above the summary or the last question."""
        question = self._question(ctx)
        if question is not None:
            # Without a summary, the last question is open again.
            del ctx.data[question.name]
        text, buttons = self._shown(ctx)
        problem = problem.strip() or self._wording.text(ctx, "bad_value", problem="").strip()
        self._answer(ctx, (f"{problem}\n\n{text}", buttons))

    async def _remind(self, ctx: Context[Any]) -> None:
        text, buttons = self._shown(ctx)
        ctx.answer(self._wording.text(ctx, "reminder", question=text), reply_markup=buttons)

    # The state of the form

    def _question(self, ctx: Context[Any]) -> Question | None:
        """Return the present question, or ``None`` in the summary or a state of another release."""
        return next((each for each in self._questions.values() if ctx.state == _state_of(each.name)), None)

    def _open_fields(self, ctx: Context[Any]) -> list[str]:
        return [name for name in self._questions if name not in ctx.data]

    def _next_state(self, ctx: Context[Any]) -> str | None:
        for name in self._open_fields(ctx):
            return _state_of(name)
        return CONFIRM if self._confirm else None

    def _previous(self, ctx: Context[Any]) -> str | None:
        found = None
        for name in self._questions:
            if ctx.state == _state_of(name):
                break
            if name in ctx.data:
                found = name
        return found

    def _is_current(self, ctx: Context[Any], action: Action) -> bool:
        """Return whether a button belongs to the present state."""
        if ctx.flow != self.name:
            return False
        if action.question is None or action.name == "change":
            return ctx.state == CONFIRM
        return ctx.state == _state_of(action.question.name)

    # What the user sees

    def _shown(self, ctx: Context[Any]) -> tuple[str, dict[str, Any]]:
        """Return the text and the buttons of the present state."""
        question = self._question(ctx)
        if question is None:
            return self._wording.summary(ctx), self._buttons.of_summary(ctx)
        return self._wording.question(ctx, question), self._question_buttons(ctx, question)

    def _answer(self, ctx: Context[Any], shown: tuple[str, dict[str, Any] | None]) -> None:
        """Edit the message of a pressed button, or send a message."""
        text, buttons = shown
        show = ctx.edit if self._buttons.is_pressed(ctx) else ctx.answer
        params: dict[str, Any] = {} if buttons is None else {"reply_markup": buttons}
        show(text[:TEXT_LIMIT], **params)

    def _refuse(self, ctx: Context[Any], question: Question, string: str, problem: str = "") -> None:
        text = self._wording.refusal(ctx, question, string, _plain(problem))
        self._answer(ctx, (text, self._question_buttons(ctx, question)))

    def _question_buttons(self, ctx: Context[Any], question: Question) -> dict[str, Any]:
        back = self._previous(ctx) is not None or not self._open_fields(ctx)
        return self._buttons.of_question(ctx, question, back=back)

    # The flow and the router

    def _made_flow(self, idle: float | timedelta | None, on_idle: Callable[[Context[Any]], Any] | None) -> type[Flow]:
        timer: dict[str, Any] = {}
        if idle is not None:
            timer = {"timeout": idle, "on_timeout": on_idle or self._remind, "idle": True}
        elif on_idle is not None:
            raise InvalidOption("on_idle= needs idle=, the seconds until it is called")
        names = [_state_of(name) for name in self._questions]
        last = [CONFIRM] if self._confirm else []

        def body(namespace: dict[str, Any]) -> None:
            for index, each in enumerate(names):
                nearby = [*names[index + 1 : index + 2], *names[max(index - 1, 0) : index], *last]
                namespace[each] = state(to=nearby, **timer)
            if last:
                namespace[CONFIRM] = state(to=names, **timer)
            namespace["default_state"] = namespace[names[0]]

        return new_class(f"{self.model.__name__}Flow", (Flow,), {"name": self.name, "data": self.model}, body)

    def _made_router(self, command: str | None) -> Router:
        router = Router()
        if command is not None:

            @router.on(filters.command(command))
            async def begin(ctx: Context[Any]) -> None:
                self.start(ctx)

        inside = router.scope(filters.fsm_flow(self.flow))
        inside.on(filters.command("cancel"))(self._cancelled)
        inside.on(filters.command("back"))(self._back)
        inside.on(filters.command("skip"))(self._skip)
        inside.on((filters.text() | filters.kind("message", "business_message")) & ~filters.command())(self._wrote)
        router.on(filters.callback(re.compile(f"^{re.escape(self.name)}:")))(self._pressed)
        return router


def _state_of(field: str) -> str:
    return f"ask_{field}"


def _is_storable(text: str) -> bool:
    """Return whether a text has no lone surrogates, which neither a storage nor Telegram accepts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(problem: str) -> str:
    """Return a message of msgspec or pydantic without its marks."""
    return problem.replace("`", "").removeprefix("Value error, ")
