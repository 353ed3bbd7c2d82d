"""What the modules of this package need of ``Turns``, of a runner and of an attempt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, TypeVar

from stepwell import Storage
from stepwell.codec.effects import Replay
from stepwell.engine import Address
from stepwell.fsm import Update, keys
from stepwell.texts import Formatting, MakeCall
from stepwell.turns.clock import StorageClock
from stepwell.turns.message import Message
from stepwell.turns.policy import Rules
from stepwell.turns.record import Answer, OpenQuestion, Running, StopReason, TurnTable
from stepwell.turns.running.budget import Budget, TurnBudget, Usage
from stepwell.turns.running.held import HeldRecord

__all__ = ["AttemptBase", "RunnerBase", "Send", "TranscriptBase", "TurnsBase"]

T = TypeVar("T")
#: Sends a call of the Bot API. It may be a coroutine function.
Send: TypeAlias = Callable[[dict[str, Any]], Any]


class TurnsBase(ABC):
    """The options of ``Turns``, its storage, and what it tells others."""

    #: The bot's name, and that of the turns, which is the flow of their records.
    bot: str
    name: str
    storage: Storage
    rules: Rules
    attempts: int
    #: Seconds of a lease.
    lease: float
    #: A turn whose handler appends nothing to the history appends the texts of its messages and of its answer.
    keeps_history: bool
    #: The defaults of all texts; ``None`` if there are none.
    formatting: Formatting | None
    stop_commands: frozenset[str]
    stop_mark: str
    stop_note: str
    clock: StorageClock
    #: What turns may cost; ``None``: as much as they do.
    budget: Budget | None
    #: The runner of this process, while there is one.
    runner: RunnerBase | None

    @property
    @abstractmethod
    def handler_function(self) -> Callable[[Any], Any]:
        """The handler."""

    @abstractmethod
    def address(self, conversation: Any) -> Address:
        """Return the address of the record of a conversation."""

    @abstractmethod
    def topic_of(self, address: Address) -> str:
        """Return the topic of the notices for a running turn, which must not contain the key."""

    @abstractmethod
    def conversation_of(self, update: Update) -> Any:
        """Return the conversation of an update; ``None`` if it belongs to none."""

    @abstractmethod
    def where_by_key(self, conversation: Any) -> keys.Where:
        """Return where answers go by the key of a conversation; nothing if the key has no chat."""

    @abstractmethod
    def update_id_of(self, update: Update) -> int | str | None:
        """Return the id of an update."""

    @abstractmethod
    def wake(self, address: Address | None = None, after: float = 0.0) -> None:
        """Let workers look at once, or this process after some seconds, at the time when a window is shut."""

    @abstractmethod
    def show(self, address: Address) -> None:
        """Let pages look at a conversation again."""

    @abstractmethod
    def started(self, address: Address, turn: Running, now: float) -> None:
        """Report the start of an attempt."""

    @abstractmethod
    def ended(self, address: Address, turn: Running, now: float, how: Any, error: str | None) -> None:
        """Report the end of a turn."""

    @abstractmethod
    async def failure_calls(self, where: dict[str, Any], error: str) -> list[dict[str, Any]]:
        """Return the calls that tell a person that a turn has failed."""

    @abstractmethod
    def where_of(self, record: HeldRecord, turn: Running) -> dict[str, Any]:
        """Return where the answer of a turn goes, as parameters of a call."""

    @abstractmethod
    def tag(self, name: str) -> str:
        """Return the stored form of a tag, such as ``user:42``."""

    @abstractmethod
    def tags_with(self, tags: tuple[str, ...], *, failed: bool) -> tuple[str, ...]:
        """Return the tags of a record, by which failed turns are found."""


class TranscriptBase(ABC):
    """What a turn shows, in order, for pages."""

    @abstractmethod
    def tool(self, part: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Add a call of a tool, which is known by the part with its intent."""

    @abstractmethod
    def tool_ended(self, part: str, outcome: str, value: Any, shown: Callable[[Any], Any] | None = None) -> None:
        """Add how a call of a tool has ended: ``returned``, ``raised`` or ``unknown``."""

    @abstractmethod
    def ask(self, question: OpenQuestion, text: str) -> None:
        """Add a question."""

    @abstractmethod
    def answered(self, question: OpenQuestion, answer: Answer) -> None:
        """Add the message that has answered a question, if one has."""


class RunnerBase(ABC):
    """Runs the turns of one ``Turns`` in this process."""

    turns: TurnsBase
    #: The client of the bot, for ``turn.bot``.
    client: Any
    #: Makes one attempt of a call, to show streams; ``None`` shows them at the end of a turn.
    try_call: MakeCall | None
    #: Seconds between two looks at the record of a running turn, if no notice arrives.
    watch_every: float

    @abstractmethod
    def budget_of(self, record: HeldRecord, turn: Running) -> TurnBudget | None:
        """Return the budget of the payer of a turn; ``None`` if it has no limit."""

    @abstractmethod
    def stop(self, address: Address, turn_id: str, reason: StopReason) -> None:
        """Stop a turn that runs in this process, at once. The table says so too."""

    @abstractmethod
    async def deliver(self, record: HeldRecord) -> bool:
        """Send the stored calls in order, and remove each; ``False`` if one cannot be sent now."""


class AttemptBase(ABC):
    """One attempt of a turn, as the turn, its tools and its questions need it."""

    turn_id: str
    #: The number of the attempt.
    number: int
    conversation: Any
    client: Any
    #: The defaults of all texts; ``None`` if there are none.
    formatting: Formatting | None
    record: HeldRecord
    #: What the turn shows, if pages show this conversation.
    transcript: TranscriptBase | None
    #: Another worker has the turn, or the record is gone.
    lost: bool

    @property
    @abstractmethod
    def where(self) -> dict[str, Any]:
        """Where answers go, as parameters of a call. Raises ``UsageError`` if the messages have no chat."""

    @abstractmethod
    def output(self, call: dict[str, Any]) -> None:
        """Add a call to the answer."""

    @property
    @abstractmethod
    def turn_chat(self) -> Any:
        """The id of the chat of the turn, or ``None``."""

    @property
    @abstractmethod
    def task_ended(self) -> bool:
        """Whether the handler has ended. It may have started tasks that go on."""

    @abstractmethod
    async def new_stream(self, params: dict[str, Any]) -> Any:
        """Begin a stream. The text of an earlier one is completed."""

    @abstractmethod
    async def flush(self) -> None:
        """Complete the text so far, and send it."""

    @abstractmethod
    async def before_message(self, store: Callable[[list[dict[str, Any]]], Awaitable[None]]) -> None:
        """Complete the text so far before another message; ``store`` gets its calls, and stores them with the cut."""

    @abstractmethod
    def skip_sent(self) -> None:
        """Leave out the text so far, if an earlier attempt has sent it."""

    @abstractmethod
    async def steered(self) -> list[Message]:
        """Move the messages that wait into this turn, and return them."""

    @abstractmethod
    async def call_tool(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        replay: Replay,
        name: str | None = None,
        call_id: str | None = None,
        shown: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Call a function, or give what it has returned in an earlier attempt."""

    @abstractmethod
    async def keep(self, value: Any) -> None:
        """Store a value for later attempts."""

    @abstractmethod
    def kept(self) -> list[Any]:
        """Return the values that this turn has kept."""

    @abstractmethod
    async def spent(self, cost: float | Usage, *, id: str | None) -> None:  # noqa: A002
        """Count a cost of the turn, and stop it if nothing is left of its budget."""

    @abstractmethod
    async def ask(
        self,
        text: str,
        *,
        options: Sequence[str],
        approvers: Iterable[int | str] | None,
        timeout: Any,
        about: Any,
        reply: bool,
        params: Mapping[str, Any],
    ) -> Any:
        """Ask, unless an earlier attempt has asked the same, and wait for the answer."""

    @abstractmethod
    def busy(self) -> AbstractContextManager[None]:
        """Do not suspend the attempt within this block, which needs the claim."""

    @abstractmethod
    def may_be_suspended(self) -> None:
        """Suspend the attempt if its handler waits for answers and does nothing else."""

    @abstractmethod
    def own(self, table: TurnTable) -> Running:
        """Return the turn of a table. Raises ``LeaseLost`` if another worker has it."""

    @abstractmethod
    async def write(self, change: Callable[[TurnTable], TurnTable | None], parts: Any = None, **options: Any) -> bool:
        """Write under the claim; see ``HeldRecord.write``. If the claim is lost, the attempt ends."""

    @abstractmethod
    async def store(self, parts: Mapping[str, str | None]) -> None:
        """Store parts beside the table."""

    @abstractmethod
    async def deliver(self) -> None:
        """Send the calls that are stored and not sent yet."""

    @abstractmethod
    async def protected(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish some work also if this task is cancelled meanwhile."""
