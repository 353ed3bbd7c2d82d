"""A node: one step of a flow."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from stepwell.nodes.graph.base import END, BaseNode, End, Exec, Prep
from stepwell.nodes.graph.hooks import is_async
from stepwell.nodes.graph.policy import ExecPolicy, Setting, declared_settings
from stepwell.nodes.walk.attempts import attempt_node

if TYPE_CHECKING:
    from stepwell.codec.effects import Replay
    from stepwell.nodes.graph.base import PostResult
    from stepwell.nodes.graph.plan import Build, Stage, Strategy

__all__ = ["END", "BaseNode", "End", "Node"]


class Node(BaseNode, Generic[Prep, Exec]):
    """One step: ``prep`` reads the shared state, ``exec`` works, ``post`` writes and chooses the edge.

    Each hook is ``def`` or ``async def``. Only ``exec`` is retried, and only ``exec`` leaves the event
    loop: a ``def exec`` runs in a thread unless the node is ``inline``. Every visit runs on a shallow
    copy of the node, so ``exec`` and ``post`` see the attributes that ``prep`` sets, and later visits do not.

    ``Node[Prep, Exec]`` names the results of ``prep`` and ``exec`` for type checkers; plain ``Node`` is
    ``Node[Any, Any]``::

        class CountWords(Node[str, int]):
            def prep(self, shared):
                return shared["text"]

            def exec(self, text):
                return len(text.split())

            def post(self, shared, text, count):
                shared["words"] = count

    A class may set these arguments for its nodes, for example ``max_retries = 3``; an argument overrides its class.

    :param max_retries: the total number of attempts of ``exec``, at least 1, by default 1.
    :param wait: seconds between two attempts, by default 0.
    :param backoff: the factor by which ``wait`` grows with each further attempt, by default 1.
    :param jitter: the most seconds that are added to each wait, at random, by default 0.
    :param retry_on: the exception class, or a tuple of them, to retry on, by default ``Exception``.
    :param timeout: seconds that one attempt may take. The thread of a ``def exec`` cannot be stopped:
        it runs to its end, and its result is ignored.
    :param inline: run a ``def exec`` on the event loop; for quick work.
    :param replay: what a durable run does if its process died while ``exec`` ran. ``"safe"``: the node runs again.
        ``"never"``: it does not, because it may have acted on the world. The run takes the edge ``"unknown"`` of the
        node, or is ``stuck`` until somebody calls ``flow.complete()`` or ``flow.retry()``. It costs two more writes.
    """

    _settings: ClassVar[tuple[str, ...]] = (*BaseNode._settings, "_policy", "exec", "exec_fallback")

    #: The settings that the class has as attributes.
    _declared: ClassVar[dict[str, Any]] = {}

    if TYPE_CHECKING:
        # A subclass may assign values of these types.
        max_retries: int
        wait: float
        backoff: float
        jitter: float
        retry_on: type[Exception] | tuple[type[Exception], ...]
        timeout: float | None
        inline: bool
        replay: Replay
    else:
        max_retries, wait, backoff, jitter = Setting(), Setting(), Setting(), Setting()
        retry_on, timeout, inline, replay = Setting(), Setting(), Setting(), Setting()

    def __init__(
        self,
        max_retries: int | None = None,
        wait: float | None = None,
        *,
        name: str | None = None,
        backoff: float | None = None,
        jitter: float | None = None,
        retry_on: type[Exception] | tuple[type[Exception], ...] | None = None,
        timeout: float | None = None,
        inline: bool | None = None,
        replay: Replay | None = None,
    ) -> None:
        super().__init__(name=name)
        given = {
            "max_retries": max_retries,
            "wait": wait,
            "backoff": backoff,
            "jitter": jitter,
            "retry_on": retry_on,
            "timeout": timeout,
            "inline": inline,
            "replay": replay,
        }
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self._policy = ExecPolicy(**{**self._declared, **settings})

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._declared = declared_settings(cls)

    if TYPE_CHECKING:

        def prep(self, shared: Any, /) -> Prep | Awaitable[Prep]: ...

        def post(self, shared: Any, prep_res: Prep, exec_res: Exec, /) -> PostResult: ...

    def exec(self, prep_res: Prep, /) -> Exec | Awaitable[Exec]:
        """Do the work, without the shared state: it may run again, and in a thread."""
        return None  # type: ignore[return-value]  # the result of a node without exec

    def exec_fallback(self, prep_res: Prep, error: Exception, /) -> Exec | Awaitable[Exec]:
        """Return a result after the last attempt has failed, or raise."""
        raise error

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        stage.policy = policy = self._policy
        stage.has_fallback = type(self).exec_fallback is not Node.exec_fallback or "exec_fallback" in vars(self)
        stage.threaded = not (is_async(stage.exec) or policy.inline or build.without_loop)
        if policy.timeout is not None:
            build.want_loop_for.append(f"{stage.path} has a timeout")
            if policy.inline and not is_async(stage.exec):
                build.problems.append(f"{stage.path} is inline, where no timeout can interrupt it: drop one of the two")
        if policy.plain and not stage.has_fallback and not stage.threaded and not build.concurrent:
            return None
        return attempt_node
