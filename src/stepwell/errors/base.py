"""Errors of a call itself, independent of the stored data."""

from __future__ import annotations

from stepwell._secrets import quoted


class StepwellError(Exception):
    """The base class of all errors of the library.

    Example::

        try:
            await storage.get_state("my_bot", object())
        except StepwellError as error:
            print(type(error).__name__, error)
    """

    def __reduce__(self) -> tuple[object, ...]:
        # Errors are pickled for process pools, and their constructors do not take the message.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[StepwellError], args: tuple[object, ...], fields: dict[str, object]) -> StepwellError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class UsageError(StepwellError, RuntimeError):
    """The call is not allowed here. It does not depend on the stored data.

    Example::

        async with fsm.conversation(update) as ctx:
            pass
        with pytest.raises(UsageError):
            ctx.update_data(name="Alice")
    """


class WrongLoop(UsageError):
    """A storage is used in an event loop that did not open it.

    Example::

        with asyncio.Runner() as first:
            first.run(storage.open())
            with pytest.raises(WrongLoop):
                asyncio.run(storage.get_state("my_bot", 42))
            first.run(storage.close())
    """

    def __init__(self, *, forked: bool = False) -> None:
        #: Whether it was opened before this process was forked.
        self.forked: bool = forked
        super().__init__(
            "this storage was opened before this process was forked, and its connections belong to the parent; "
            "close() it before forking, or open it in the forked worker"
            if forked
            else "this storage was opened in another event loop; open one storage per loop, "
            "or close() it there before using it here"
        )


class AlreadyHeld(UsageError):
    """A task claims a key that it, or the task that started it, already holds. Waiting for it would never end.

    Example::

        async with fsm.conversation(key=42) as ctx:
            with pytest.raises(AlreadyHeld):
                async with fsm.conversation(key=42):
                    pass
    """

    def __init__(self, place: str) -> None:
        self.place: str = place
        super().__init__(
            f"this task, or the task that started it, already holds {place}; use the existing context instead of "
            "entering a second one, or enter it after that block"
        )


class InsideLoop(UsageError):
    """A sync function is called where it would block a running event loop.

    Example::

        async def handler():
            sync(storage.get_state("my_bot", 42))

        with pytest.raises(InsideLoop):
            await handler()
    """

    def __init__(self, instead: str = "await the coroutine") -> None:
        super().__init__(f"a sync call inside a running event loop would block it; {instead} instead")


class InvalidOption(StepwellError, ValueError):
    """An option is unknown or has an invalid value.

    Example::

        with pytest.raises(InvalidOption):
            FSM("my_bot", storage="memory://", flows=[], on_missing_key="shrug")
    """


class InvalidName(InvalidOption):
    """A name contains a control character: of a flow, a node, a state, a partition, a signal, a schedule or a tag.

    Example::

        with pytest.raises(InvalidName):
            NodeFlow(name="orders\\n")
    """

    def __init__(self, what: str, name: str, position: int) -> None:
        self.what: str = what
        self.name: str = name
        self.position: int = position
        super().__init__(
            f"{what} {quoted(name[:100])} has the control character {quoted(name[position])} at position "
            f"{position}; remove it"
        )


class MissingExtra(StepwellError, ImportError):
    """An optional package is not installed.

    Example::

        try:
            storage = open_storage("redis://localhost")
        except MissingExtra as error:
            print("run: pip install", f"'stepwell[{error.extra}]'")
    """

    def __init__(self, package: str, extra: str) -> None:
        self.package: str = package
        self.extra: str = extra
        super().__init__(f"{package} is not installed; run: pip install 'stepwell[{extra}]'", name=package)


class ExtraTooOld(StepwellError, ImportError):
    """The installed version of an optional package is too old.

    Example::

        try:
            from stepwell.adapters import langgraph
        except ExtraTooOld as error:
            print(error.package, error.found, "is older than", error.minimum)
    """

    def __init__(self, package: str, found: str, minimum: str, extra: str) -> None:
        self.package: str = package
        self.found: str = found
        self.minimum: str = minimum
        self.extra: str = extra
        super().__init__(
            f"{package} {found} is too old, at least {minimum} is required; run: "
            f"pip install --upgrade 'stepwell[{extra}]'",
            name=package,
        )


class Unsupported(StepwellError, NotImplementedError):
    """A backend does not support an optional feature.

    Example::

        class Minimal(KeyValueStorage):
            read = write = delete = None

        with pytest.raises(Unsupported):
            await Minimal().namespaces()
    """

    def __init__(self, backend: str, what: str) -> None:
        self.backend: str = backend
        self.what: str = what
        super().__init__(f"{backend} cannot {what}; use one of the four built-in storages")


class UnknownOutcome(StepwellError, RuntimeError):
    """A call of an ``@effect``, or with ``replay="never"``, was interrupted: it may have acted, and does not run again.

    Example::

        error = UnknownOutcome("charge", "order-7/Pay/1")
        assert error.name == "charge"
    """

    def __init__(self, name: str, place: str, *, node: str | None = None, item: int | None = None) -> None:
        #: The name of the function, node or tool.
        self.name: str = name
        #: In a run: the path of the node that has called it, and the index of the item of a batch.
        self.node: str | None = node
        self.item: int | None = item
        #: The turn, or the step of the run, in which it was called.
        self.place: str = place
        super().__init__(
            f"the outcome of {quoted(name)} in {place} is unknown: it was interrupted while it ran, and it "
            "must not run twice. Find out what happened outside, and go on from there"
        )
