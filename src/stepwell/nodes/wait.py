"""Durable waits, for an answer or for time to pass. The process may exit meanwhile."""

from __future__ import annotations

from collections.abc import Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from stepwell.codec import check_name
from stepwell.codec.accepted import Accepted
from stepwell.nodes.graph.base import BaseNode, PostResult
from stepwell.nodes.graph.hooks import call_hook
from stepwell.nodes.run.branch import Park
from stepwell.nodes.run.ids import WaitId
from stepwell.nodes.walk.execution import current
from stepwell.options import check_number, check_text

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Build, Stage, Strategy
    from stepwell.nodes.walk.execution import Cursor

__all__ = ["Sleep", "Wait"]

#: Takes the place of the answer after a timeout.
_TIMED_OUT: Final = object()


class Wait(BaseNode):
    """A node that parks the run until ``flow.resume(parked.id, answer)`` or ``flow.answer(parked.id, answer)``.

    ``prep`` returns the question. ``post(shared, question, answer)`` chooses the edge; by default it sets
    ``shared[name] = answer``. After ``timeout`` seconds without an answer, the action is ``"timeout"`` and
    ``post`` is not called; a node with other edges needs one for it. With ``signal``, the oldest unused
    ``flow.signal(flow_id, signal, value)`` is an answer too, even if it was sent before the run got here.
    With ``accepts``, an answer that does not fit the type is refused with ``InvalidAnswer`` before it is stored, also
    on the command line and in the inspector; ``post`` gets a value of that type. It is a dataclass, a msgspec Struct,
    a TypedDict, a pydantic model, an Enum, a Literal, or a plain type such as ``bool``.

    Example::

        flow = linear(Wait("approval", timeout=3 * 86_400), name="approve", storage=storage)
        try:
            await flow.run({}, flow_id="order-42")
        except Parked as parked:
            final = await flow.resume(parked.id, "yes")
        assert final["approval"] == "yes"
    """

    _settings: ClassVar[tuple[str, ...]] = (*BaseNode._settings, "timeout", "signal", "accepts")
    _shape: ClassVar[str] = "wait"

    def __init__(
        self, name: str, *, timeout: float | None = None, signal: str | None = None, accepts: Any = None
    ) -> None:
        super().__init__(name=name)
        if timeout is not None:
            _check_seconds("timeout", timeout)
        check_text(signal, "signal={}: give the name of a signal, or None", optional=True)
        check_name("the signal", signal)
        self.timeout: float | None = timeout
        self.signal: str | None = signal
        self.accepts: Any = accepts
        self._accepted: Accepted | None = None if accepts is None else Accepted(accepts, name)

    def post(self, shared: Any, prep_res: Any, exec_res: Any, /) -> PostResult:
        """Write the answer to the shared state, and choose the edge."""
        shared[self.name] = exec_res
        return None

    def _own_actions(self) -> tuple[str, ...]:
        return () if self.timeout is None else ("timeout",)

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        return _compile(build, stage, self.timeout, "timeout")


class Sleep(BaseNode):
    """A node that parks the run for ``seconds``. A worker, or a later ``flow.resume()``, continues it.

    Example::

        flow = linear(Sleep(86_400), Read, name="later", storage=storage)
    """

    _settings: ClassVar[tuple[str, ...]] = (*BaseNode._settings, "seconds")
    _shape: ClassVar[str] = "sleep"

    def __init__(self, seconds: float, *, name: str | None = None) -> None:
        super().__init__(name=name)
        _check_seconds("seconds", seconds)
        self.seconds: float = seconds

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        return _compile(build, stage, self.seconds, "default")


def _check_seconds(name: str, seconds: object) -> None:
    check_number(seconds, f"{name}={{}}: give a number of seconds above 0", above=0, finite=True)


def _compile(build: Build, stage: Stage, seconds: float | None, timeout_action: str) -> Strategy:
    """Complete the stage of a wait or a sleep, whose action after ``seconds`` is ``timeout_action``."""
    if build.durable:
        stage.durable = _wait
    stage.extra = seconds
    post = stage.post

    def choose(node: Any, shared: Any, question: Any, answer: Any) -> Any:
        if answer is _TIMED_OUT:
            return timeout_action
        action = post(node, shared, question, answer)
        return _replied_later(action) if type(action) is CoroutineType else _replied(action)

    stage.post = choose
    return build.need_storage(stage, "waits")


def _replied(action: Any) -> Any:
    """Reply to the update that a wait has taken, if its ``post`` has not, and return the action."""
    cursor = current()
    if cursor is not None and cursor.branch is not None:
        cursor.branch.journal.reply(cursor.node, overwrite=False)
    return action


async def _replied_later(action: Coroutine[Any, Any, Any]) -> Any:
    return _replied(await action)


def _typed(node: Any, answer: Any) -> Any:
    """Return an answer as the type that a wait accepts; raise ``ValueError`` if it does not fit after a deploy."""
    accepted = getattr(node, "_accepted", None)
    return answer if accepted is None else accepted.value(answer)


async def _wait(stage: Stage, cursor: Cursor, node: Any, shared: Any, inside: bool) -> tuple[Any, Any]:
    """Return the question and its answer; park the branch if there is no answer yet."""
    branch = cursor.branch
    assert branch is not None
    journal, path = branch.journal, stage.path
    if not inside:
        question = await call_hook(stage.prep, node, shared)
        journal.parts.seal(path, "question", question, "the question{}".format)
        wait_id = WaitId(journal.flow_id, path, cursor.visit, journal.mark).text
        wait: dict[str, Any] = {
            "id": wait_id if isinstance(node, Wait) else "",
            "question": question,
            "until": None if stage.extra is None else journal.now() + stage.extra,
            "since": journal.now(),
        }
        if isinstance(node, Wait) and node._accepted is not None:
            wait["accepts"] = node._accepted.schema
        if isinstance(node, Wait) and node.signal is not None:
            wait["signal"] = node.signal
            name = journal.mailbox.signal_for(wait)
            if name is not None:
                # It was sent before, so the run need not park.
                message = journal.mailbox.use(name)
                wait["answer"] = message["value"]
                if "reply" in message:
                    wait["reply"] = message["reply"]
        branch.begin(stage, cursor.visit, None, wait)
        if "answer" in wait:
            return question, _typed(node, wait["answer"])
        if branch.parent is not None:
            # The other branches may take long, and the question must not be asked twice after a crash.
            await branch.save(path)
        raise Park
    wait = journal.open[path]
    if "answer" in wait:
        return wait["question"], _typed(node, wait["answer"])
    if path in journal.overdue:
        if wait["id"] and wait["id"] not in journal.late:
            journal.late.append(wait["id"])
        return wait["question"], _TIMED_OUT
    raise Park
