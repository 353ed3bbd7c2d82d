"""The context: a handler's view of its conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from stepwell.codec import values
from stepwell.fsm.conversation.block import NoRecord
from stepwell.fsm.conversation.calls import Calls
from stepwell.fsm.conversation.commit import write
from stepwell.fsm.conversation.extension import extension_of
from stepwell.fsm.conversation.missing_names import missing_name
from stepwell.fsm.conversation.moves import Moves, check_mapping
from stepwell.fsm.flows import typed

__all__ = ["Context", "Handler"]

T = TypeVar("T")
if TYPE_CHECKING:
    # Type checkers know this module without the package. Defaults of type variables are in typing since Python 3.13.
    import typing_extensions

    Data = typing_extensions.TypeVar("Data", bound=Mapping[Any, Any], default=dict[str, Any])
else:
    Data = TypeVar("Data")


class Context(Moves, Calls, Generic[Data]):
    """One conversation while one update is handled.

    Changes are made in memory, and written in one commit when the block ends. If the block raises, nothing is written.

    ``Context[RegistrationData]``, with a ``TypedDict``, gives type checkers the types of the fields in ``ctx.data``.
    A plain ``Context`` has ``dict[str, Any]``. For a flow with another ``data=`` type, use ``ctx.data_as(type)``.

    Example::

        @router.on(fsm_state(Registration.get_name), text())
        async def get_name(ctx: Context):
            ctx.update_data(name=ctx.text)
            ctx.transition("get_email")
            ctx.answer(f"Got it, {ctx.text}! What's your email?")
    """

    __slots__ = ()

    if not TYPE_CHECKING:
        # Type checkers would accept any name.
        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or hasattr(type(self), name):
                # A property has raised an AttributeError: raise it again.
                return object.__getattribute__(self, name)
            raise missing_name(name, dir(type(self)))

    @property
    def data(self) -> Data:
        """The data, a dict. It may be changed in place."""
        data: Data = self._record.data
        return data

    @property
    def profile(self) -> dict[Any, Any]:
        """Data of this key that outlives flows. Change it in place.

        ``start_flow``, ``clear_flow`` and the expiry of a conversation leave it; ``fsm.forget`` deletes it.
        """
        if self._profile is None:
            stored = extension_of(self._record).profile
            self._profile = values.decode(stored) if stored else {}
        return self._profile

    def data_as(self, kind: type[T]) -> T:
        """Return the data as one object of a type. Raises ``IncompleteData`` if fields are missing or wrong."""
        return typed.build(kind, self._record.data)

    @property
    def text(self) -> str | None:
        """The text of the message."""
        return self.update.text

    @property
    def args(self) -> str:
        """The text after a command: ``"hello"`` for ``/start hello``."""
        command = self.update.command
        return command.args if command is not None else ""

    def update_data(self, changes: Mapping[Any, Any] | None = None, /, **fields: Any) -> Data:
        """Merge fields into the data, and return the data."""
        if changes is not None:
            check_mapping("update_data", changes)
            fields = {**changes, **fields}
        if not self._refuses():
            self._check(fields)
            self._record.data.update(fields)
        return self.data

    def set_data(self, data: Mapping[Any, Any]) -> None:
        """Replace the data."""
        check_mapping("set_data", data, optional=False)
        if not self._refuses():
            self._check(data)
            self._record.data = dict(data)

    async def save(self) -> None:
        """Write now, and keep the claim. The update counts as handled only when the block ends."""
        if type(self._record) is NoRecord and not self._record.data:
            return
        if not self._refuses() and await write(self._fsm, self, self._record, keep=True):
            self.saved = True
            self.moves_saved: int = len(self.moves)

    def reset(self) -> None:
        """Forget the calls and moves since the last ``save()``, after a rollback of the record."""
        if self._calls is not None:
            self._calls.clear()
        self._profile = None
        del self.moves[self.moves_saved :]
        self.moves_emitted: int = min(self.moves_emitted, self.moves_saved)
        self.moves_hooked: int = 0
        self.entered = self.began = False
        self.result: Any = None


#: A function of the context, ``def`` or ``async def``.
Handler: TypeAlias = Callable[[Context[Any]], Any]
