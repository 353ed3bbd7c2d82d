"""One batch: its operations, its number, and how it is sent again after a lost connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from stepwell._backoff import backoff
from stepwell.errors import InvalidOption, StorageUnavailable
from stepwell.storage.operations import Operation, Result

__all__ = ["JOURNAL_LIFE", "REPEATABLE", "Batch", "check_patience", "elapsed", "send"]

#: Seconds for which a backend keeps the number and the results of a lane's last batch.
JOURNAL_LIFE = 600
#: Seconds after the first attempt in which a batch may be sent again. Half of the journal's life: the other half allows
#: for delays in the network.
REPEATABLE = JOURNAL_LIFE / 2


#: A monotonic clock that, where available, also runs while the machine is suspended.
elapsed: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    elapsed = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


def check_patience(patience: float, timeout: float) -> None:
    """Raise ``InvalidOption`` if a batch could be retried after its journal has expired.

    ``timeout``: the longest time of one attempt.
    """
    if not patience + timeout <= REPEATABLE:
        raise InvalidOption(
            f"patience={patience:g} is too long: with its timeouts a call may be retried for at most {REPEATABLE:g} s, "
            f"because a server remembers its last writes for {JOURNAL_LIFE} s"
        )


class Batch(tuple[Operation, ...]):
    """The operations of one round trip, with the id of the lane and a serial number.

    A backend with a network connection keeps the number and the results of a lane's last batch in the same commit.
    The same number again returns the kept results; a lower number is refused.

    Example::

        from stepwell.engine import Batch

        batch = Batch.of([Get(storage.address("my_bot", 42))], storage.ids(), 1)
        assert (batch.number, len(batch)) == (1, 1)
    """

    lane: str
    number: int

    @classmethod
    def of(cls, operations: Sequence[Operation], lane: str, number: int) -> Batch:
        """Return a batch of these operations."""
        batch = cls(operations)
        batch.lane, batch.number = lane, number
        return batch


async def send(
    batch: Batch,
    run: Callable[[Batch], Awaitable[list[Result]]],
    deadline: float,
    *,
    sent: bool,
    clock: Callable[[], float],
    pauses: tuple[float, float],
) -> list[Result]:
    """Return the results of a batch. If the connection breaks, send it again under its number until ``deadline``.

    ``sent``: the server may have received it before. The errors that it raises say the same.
    """
    attempt = 0
    while True:
        try:
            results = await run(batch)
            if len(results) != len(batch):
                raise StorageUnavailable(
                    f"the backend returned {len(results)} results for {len(batch)} operations", final=True
                )
            if sent:
                for result in results:
                    if isinstance(result, StorageUnavailable):
                        result.sent = True
            return results
        except StorageUnavailable as error:
            sent = error.sent = sent or error.sent
            # The first retry is immediate: a connection that the server has closed is the usual cause.
            pause = backoff(attempt, *pauses) if attempt else 0.0
            if error.final or clock() + pause >= deadline:
                raise
            last = error
            attempt += 1
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise StorageUnavailable("the backend's call was cancelled", final=True) from None
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except Exception as error:
            if not sent:
                raise
            # An earlier attempt may have been applied, so the outcome is unknown.
            raise StorageUnavailable(f"it failed after its answer was lost ({type(error).__name__})") from error
        except BaseException as error:
            # A BaseException would end the lane, and bypass the callers' handlers.
            raise StorageUnavailable(f"the backend raised {type(error).__name__}", final=True) from error
        await asyncio.sleep(pause)
        if clock() >= deadline:
            # The process was stopped or the machine suspended, so the journal may have expired.
            raise last
