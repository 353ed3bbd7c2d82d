"""Durable waits, for an answer or for time to pass. The process may exit meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from stepwell.errors import InvalidOption, UsageError
from stepwell.nodes.engine.base import BaseNode, PostResult
from stepwell.nodes.engine.branch import Park
from stepwell.nodes.engine.hooks import call_hook
from stepwell.nodes.engine.ids import WaitId

if TYPE_CHECKING:
    from stepwell.nodes.engine.plan import Build, Stage, Strategy
    from stepwell.nodes.engine.position import Cursor

__all__ = ["Sleep", "Wait"]

#: Takes the place of the answer after a timeout.
_TIMED_OUT: Final = object()


class Wait(BaseNode):
    """A node that parks the run until ``flow.resume(parked.id, answer)``.

    ``prep`` returns the question. ``post(shared, question, answer)`` chooses the edge; by default it sets
    ``shared[name] = answer``. After ``timeout`` seconds without an answer, the action is ``"timeout"`` and
    ``post`` is not called.
    """

    _settings: ClassVar[tuple[str, ...]] = (*BaseNode._settings, "timeout")
    _shape: ClassVar[str] = "wait"

    def __init__(self, name: str, *, timeout: float | None = None) -> None:
        super().__init__(name=name)
        if timeout is not None:
            _check_seconds("timeout", timeout)
        self.timeout: float | None = timeout

    def post(self, shared: Any, prep_res: Any, exec_res: Any, /) -> PostResult:
        """Write the answer to the shared state, and choose the edge."""
        shared[self.name] = exec_res
        return None

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        build.want_storage(f"{stage.path} waits")
        if build.durable:
            stage.durable = _wait
        stage.extra = (self.timeout, True)
        _set_timeout_action("timeout", stage)
        return _needs_storage


class Sleep(BaseNode):
    """A node that parks the run for ``seconds``. A worker, or a later ``flow.resume()``, continues it."""

    _settings: ClassVar[tuple[str, ...]] = (*BaseNode._settings, "seconds")
    _shape: ClassVar[str] = "sleep"

    def __init__(self, seconds: float, *, name: str | None = None) -> None:
        super().__init__(name=name)
        _check_seconds("seconds", seconds)
        self.seconds: float = seconds

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        build.want_storage(f"{stage.path} sleeps")
        if build.durable:
            stage.durable = _wait
        stage.extra = (self.seconds, False)
        _set_timeout_action("default", stage)
        return _needs_storage


def _check_seconds(name: str, seconds: object) -> None:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < float("inf"):
        raise InvalidOption(f"{name}={seconds!r}: give a number of seconds above 0")


def _set_timeout_action(action: str, stage: Stage) -> None:
    post = stage.post

    def choose(node: Any, shared: Any, question: Any, answer: Any) -> Any:
        return action if answer is _TIMED_OUT else post(node, shared, question, answer)

    stage.post = choose


async def _wait(stage: Stage, cursor: Cursor, node: Any, shared: Any, inside: bool) -> tuple[Any, Any]:
    """Return the question and its answer; park the branch if there is no answer yet."""
    branch = cursor.branch
    assert branch is not None
    journal, path = branch.journal, stage.path
    if not inside:
        question = await call_hook(stage.prep, node, shared)
        journal.seal(path, "question", question, "the question{}".format)
        seconds, answerable = stage.extra
        wait = {
            "id": WaitId(journal.flow_id, path, cursor.visit, journal.mark).text if answerable else "",
            "question": question,
            "until": None if seconds is None else journal.now() + seconds,
        }
        branch.begin(stage, cursor.visit, None, wait)
        if branch.parent is not None:
            # The other branches may take long, and the question must not be asked twice after a crash.
            await branch.save(path)
        raise Park
    wait = journal.open[path]
    if "answer" in wait:
        return wait["question"], wait["answer"]
    if path in journal.overdue:
        return wait["question"], _TIMED_OUT
    raise Park


async def _needs_storage(stage: Stage, cursor: Any, node: Any, prep_res: Any, shared: Any) -> Any:
    raise UsageError(f"{stage.path} waits, so its run needs a storage: run(shared, storage=...)")
