"""A node: one step of a flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from stepwell.nodes.engine.attempts import ExecPolicy, Setting, attempt_node
from stepwell.nodes.engine.base import END, BaseNode, End

if TYPE_CHECKING:
    from stepwell.nodes.engine.plan import Build, Stage, Strategy

__all__ = ["END", "BaseNode", "End", "Node"]


class Node(BaseNode):
    """One step: ``prep`` reads the shared state, ``exec`` works, ``post`` writes and chooses the edge.

    Each hook is ``def`` or ``async def``. Only ``exec`` is retried, and only ``exec`` leaves the event
    loop: a ``def exec`` runs in a thread unless the node is ``inline``. Every visit runs on a shallow
    copy of the node, so what ``prep`` puts on ``self`` is seen by ``exec`` and ``post`` of that visit only.

    :param max_retries: how often ``exec`` is tried in all, at least 1.
    :param wait: seconds between two attempts.
    :param backoff: what ``wait`` is multiplied with after each further attempt.
    :param jitter: up to so many seconds are added to each wait, at random.
    :param retry_on: the exception class, or a tuple of them, that is worth another attempt.
    :param timeout: seconds that one attempt may take. The thread of a ``def exec`` cannot be stopped:
        its result is ignored, and it runs on to its end.
    :param inline: run a ``def exec`` on the event loop itself; for quick work.
    """

    _settings: ClassVar[tuple[str, ...]] = (*BaseNode._settings, "_policy", "exec", "exec_fallback")

    max_retries = Setting()
    wait = Setting()
    backoff = Setting()
    jitter = Setting()
    retry_on = Setting()
    timeout = Setting()
    inline = Setting()

    def __init__(
        self,
        max_retries: int = 1,
        wait: float = 0,
        *,
        name: str | None = None,
        backoff: float = 1,
        jitter: float = 0,
        retry_on: type[Exception] | tuple[type[Exception], ...] = Exception,
        timeout: float | None = None,
        inline: bool = False,
    ) -> None:
        super().__init__(name=name)
        self._policy = ExecPolicy(max_retries, wait, backoff, jitter, retry_on, timeout, inline)

    def exec(self, prep_res: Any, /) -> Any:
        """Do the work, without the shared state: it may run again, and in a thread."""

    def exec_fallback(self, prep_res: Any, error: Exception, /) -> Any:
        """Give a result after the last attempt has failed, or raise."""
        raise error

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        stage.policy = policy = self._policy
        stage.has_fallback = type(self).exec_fallback is not Node.exec_fallback or "exec_fallback" in vars(self)
        stage.threaded = not (stage.is_async("exec") or policy.inline or build.without_loop)
        if policy.timeout is not None:
            build.want_loop(f"{stage.path} has a timeout")
            if policy.inline and not stage.is_async("exec"):
                build.problem(f"{stage.path} is inline, where no timeout can interrupt it: drop one of the two")
        if policy.plain and not stage.has_fallback and not stage.threaded and not build.concurrent:
            return None
        return attempt_node
