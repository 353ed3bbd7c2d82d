"""Turns: the conversations of one bot with an agent."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Literal, TypeAlias, TypeVar

from stepwell import Storage
from stepwell.engine import (
    TURNS,
    Address,
    Get,
    Stored,
    TimerSource,
    as_storage,
    call_function,
    decode_key,
    log_tag,
    quoted,
    serve_timers,
)
from stepwell.errors import InvalidOption, UsageError
from stepwell.fsm import FSM, BotMethods, Router, Update, keys
from stepwell.options import check_choice, check_function, check_instance, check_number, check_text, check_whole
from stepwell.texts import Formatting, MakeCall, fit
from stepwell.turns.admission import Admission, Admissions, calls_of
from stepwell.turns.base import RunnerBase, Send, TurnsBase
from stepwell.turns.clock import StorageClock
from stepwell.turns.control import Controls, Decided
from stepwell.turns.events import MessageTaken, TurnEnded, TurnEvent, TurnStarted, TurnSubscriber, call_subscribers
from stepwell.turns.failed import FailedTurns
from stepwell.turns.frameworks import adapter_of
from stepwell.turns.history import History
from stepwell.turns.message import Message, WebUpdate, is_message
from stepwell.turns.policy import POLICIES, OnBusy, Rules
from stepwell.turns.record import WORKING_PARTS, Running, message_part
from stepwell.turns.running.budget import Budget, BudgetStatus, budgets_in
from stepwell.turns.running.held import HeldRecord
from stepwell.turns.running.runner import Runner
from stepwell.turns.running.turn import Turn
from stepwell.turns.status import TurnStatus, status_of

__all__ = ["Turns"]

#: A handler of turns: a coroutine function, or an async generator of pieces of text.
Handler: TypeAlias = Callable[[Turn], Any]
H = TypeVar("H", bound=Handler)
#: Gives the calls to make when a message waits or is refused: a text, a call, or a list of calls.
OnWaiting: TypeAlias = Callable[[Admission], Any]
#: Gives the calls to make when a turn has failed; gets the destination as parameters of a call, and the error.
OnFailed: TypeAlias = Callable[[dict[str, Any], str], Any]

#: How many turns run at once in a process.
AT_ONCE = 100
#: Seconds between two looks at the record of a running turn: where other processes can send notices, and where not.
WATCH, WATCH_WITHOUT_NOTICES = 1.0, 0.3


class Turns(TurnsBase):
    """The conversations of one bot with an agent, which answers messages in turns.

    ``collect`` and ``at_most``: messages that follow each other within ``collect`` seconds, for at most ``at_most``,
    become one turn. ``on_busy``: what a message does that arrives while a turn runs. ``attempts``: a turn whose process
    has died so often fails. ``lease``: how many seconds a turn waits whose worker has vanished on another machine.
    ``waiting`` and ``waiting_bytes``: the most messages that may wait, and their size. ``key``: the conversation of an
    update, by default its chat and topic; ``identity``: a function of an update that gives the conversation instead.
    ``accepts``: a function of an update that returns whether it is a message for a turn; by default every message of
    a person that is no command. ``parse_mode`` and ``link_preview_options``: what all texts of turns have that name
    none; ``"CommonMark"`` is the Markdown that models write. Those of an attached router are for its own handlers.
    ``budget``: what turns may cost in a period.

    Example::

        turns = Turns("my_bot", storage="sqlite:///bot.db", collect=1.0, on_busy="merge")

        @turns.handler
        async def answer(turn):
            async for piece in model.stream(turn.text, history=await turn.history.read()):
                yield piece
    """

    def __init__(
        self,
        bot: str,
        *,
        storage: Storage | str,
        collect: float = 1.0,
        at_most: float = 5.0,
        on_busy: OnBusy = "merge",
        attempts: int = 3,
        lease: float = 30.0,
        waiting: int = 100,
        waiting_bytes: int = 128 * 1024,
        history: bool = True,
        key: keys.KeyStrategy | type[keys.KeyStrategy] | Callable[[Update], Any] | None = None,
        identity: Callable[[Update], Any] | None = None,
        accepts: Callable[[Update], object] | None = None,
        update_id: Callable[[Update], int | str | None] | None = None,
        on_waiting: OnWaiting | None = None,
        parse_mode: str | None = None,
        link_preview_options: Mapping[str, Any] | None = None,
        on_failed: OnFailed | str = "Sorry, something went wrong, and this was not answered. Please try again.",
        stop_commands: Sequence[str] = ("stop",),
        stop_mark: str = " [stopped]",
        stop_note: str = "Stopped.",
        budget: Budget | None = None,
        name: str = "turns",
    ) -> None:
        check_choice(on_busy, POLICIES, f"on_busy must be one of {', '.join(POLICIES)}, not {{}}")
        for option, seconds in (("collect", collect), ("at_most", at_most)):
            check_number(seconds, f"{option} must be a number of seconds of at least 0, not {{}}", least=0, finite=True)
        check_number(lease, "lease must be a number of seconds above 0, not {}", above=0, finite=True)
        for option, number in (("attempts", attempts), ("waiting", waiting), ("waiting_bytes", waiting_bytes)):
            check_whole(number, f"{option} must be a whole number of at least 1, not {{}}", least=1)
        for option, function in (
            ("identity", identity), ("accepts", accepts), ("update_id", update_id), ("on_waiting", on_waiting),
        ):  # fmt: skip
            check_function(function, f"{option} must be a function, not {{}}", optional=True)
        check_instance(budget, Budget, "budget must be a Budget, not {}", optional=True)
        check_text(name, "name must be a text, not {}")
        self.bot: str = bot
        self.name: str = name
        self.storage: Storage = as_storage(storage)
        self.storage.address(bot, ())
        self.rules: Rules = Rules(on_busy, float(collect), float(at_most), waiting, waiting_bytes)
        self.attempts: int = attempts
        self.lease: float = float(lease)
        self.keeps_history: bool = bool(history)
        self.stop_commands: frozenset[str] = frozenset(each.lower().removeprefix("/") for each in stop_commands)
        self.stop_mark: str = stop_mark
        self.stop_note: str = stop_note
        self.formatting: Formatting | None = Formatting.of(parse_mode, link_preview_options, "Turns")
        self.budget: Budget | None = budget
        self.subscribers: list[TurnSubscriber] = []
        self.clock: StorageClock = StorageClock(self.storage)
        #: The runner of this process, while there is one.
        self.runner: RunnerBase | None = None
        self._key = keys.strategy(identity or key or _ChatAndTopic())
        self._accepts = accepts or is_message
        self._update_id = update_id
        self._on_waiting = on_waiting
        self._on_failed = on_failed
        self._handler: Handler | None = None
        self._admissions = Admissions(self, self._waiting_calls, self._told)
        self._controls = Controls(self)
        self._failed = FailedTurns(self)
        self._topic = "turns:" + hashlib.sha256(f"{bot}\n{name}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        #: What must wait for updates that are under way.
        self._held: Callable[[Address], bool] | None = None
        self._wakes: dict[Address, asyncio.TimerHandle] = {}

    # For the bot

    def handler(self, function: H) -> H:
        """Decorate the handler of turns: ``async def answer(turn)``, a coroutine function or an async generator.

        What a generator yields is streamed, and all of it is the answer.
        """
        if not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
            raise InvalidOption("@turns.handler decorates an 'async def' function of the turn, which may yield texts")
        if self._handler is not None:
            raise InvalidOption("these turns have a handler already")
        self._handler = function
        return function

    def attach(self, to: Any) -> None:
        """Let a router pass on what none of its handlers matches, and let its runner run the turns.

        ``to``: a ``Router``, the ``Dispatcher`` of an aiogram bot, or the ``Application`` of a python-telegram-bot. Its
        handlers come first. They do not wait for a turn, nor a turn for them.
        """
        if isinstance(to, Router):
            to.attach(self)
            return
        adapter = adapter_of(to)
        if adapter is None:
            raise InvalidOption(
                f"attach() takes a Router, a Dispatcher of aiogram or an Application of python-telegram-bot, not "
                f"{quoted(to)}; with another framework call turns.admit(update), and run turns.worker(send=...)"
            )
        adapter.attach_turns(to, self)

    def as_router(self) -> Router:
        """Return a router that has only these turns, to run them: ``run_polling(turns.as_router())``.

        ``stepwell run`` and ``stepwell play`` call it for a file that has ``turns`` and no ``router``.
        """
        router = Router(FSM(self.bot, storage=self.storage, flows=[]))
        self.attach(router)
        return router

    async def admit(self, update: Any) -> Admission:
        """Take an update, and return what has become of it, with the calls to make.

        Call it before the update is confirmed to Telegram. The result is true if the update belongs to a turn, else
        the update is for other handlers. An update that is taken again changes nothing.
        """
        update = Update.of(update)
        if self.is_control(update):
            calls = await self.control(update)
            if calls is not None:
                return Admission("answer", 0, calls=calls)
        conversation = self.conversation_of(update)
        if conversation is None:
            return Admission("passed", 0)
        if update.command is not None or update.callback_data is not None:
            await self._admissions.shut(conversation)
        if not self._accepts(update) and not (update.kind or "").startswith("edited_"):
            return Admission("passed", 0)
        return await self._admissions.admit(update, conversation)

    def is_control(self, update: Update) -> bool:
        """Return whether an update stops a turn or answers a question with a button. It must not wait for others."""
        return self._controls.is_control(update)

    async def control(self, update: Update) -> list[dict[str, Any]] | None:
        """Do what ``is_control`` tells of. Return the calls to make; ``None`` if other handlers get the update too."""
        return await self._controls.control(update)

    async def stop(self, conversation: Any, *, turn: str | None = None) -> bool:
        """Stop the turn of a conversation, or of the conversation of an update. Return whether there was one to stop.

        ``turn``: only the turn with this id. The text that was written so far ends the turn with a mark, and messages
        that wait become the next turn.
        """
        return await self._controls.stop(self._key_of(conversation), turn)

    async def decide(
        self,
        conversation: Any,
        choice: str,
        *,
        by: int | str | None = None,
        name: str = "",
        question: int | None = None,
        turn: str | None = None,
    ) -> Decided:
        """Answer an open question of a conversation: with an option, or with a text if it asks for a reply.

        ``by``: the id of who answers, which must be one of the approvers if the question has some. ``question``: its
        number, if several are open. ``turn``: only a question of the turn with this id. Only ``"accepted"`` is true in
        an ``if``.
        """
        check_instance(choice, str, "decide() takes an option or a text, got {}")
        check_instance(name, str, "decide(name=...) takes a text, got {}")
        check_instance(by, int | str, "decide(by=...) takes the id of a person, got {}", optional=True)
        key = self._key_of(conversation)
        return await self._controls.decide(key, choice, by=by, name=name, question=question, turn=turn)

    async def reply(self, conversation: Any, text: str, **params: Any) -> None:
        """Send a message to the chat of a conversation, as a person who takes over from the agent does.

        It is stored first, and a worker sends it: at least once, after the answers that are not sent yet, also while a
        turn runs. The agent does not see it; append to ``history(conversation)`` what it should know. ``params`` are
        further parameters of ``sendMessage``.

        Raises ``InvalidOption`` if the chat is not known, which is possible with ``identity=``; then pass ``chat_id=``.
        """
        check_text(text, "reply() takes a text, not {}")
        await self._controls.reply(self._key_of(conversation), text, params)

    async def status(self, conversation: Any) -> TurnStatus:
        """Return what a conversation does now: its turn, the messages that wait, open questions, failed turns."""
        address = self.address(self._key_of(conversation))
        stored: Stored | None = await self.storage.perform(Get(address, WORKING_PARTS))
        return status_of(self.storage, address, stored)

    def history(self, conversation: Any) -> History:
        """Return the history of a conversation, for other programs than its turns."""
        return History(self.storage, self.bot, self._key_of(conversation))

    async def conversations(self, state: str | None = None, *, failed: bool = False) -> AsyncIterator[TurnStatus]:
        """Yield the conversations, or those in a state, or those with failed turns: ``async for ... in``."""
        async for address in self._failed.addresses(state, failed=failed):
            stored: Stored | None = await self.storage.perform(Get(address, WORKING_PARTS))
            yield status_of(self.storage, address, stored)

    async def budgets(self) -> AsyncIterator[BudgetStatus]:
        """Yield what each payer has spent of the budget in the present period: ``async for ... in turns.budgets()``."""
        async for found in budgets_in(self.storage, await self.clock.now(), self.bot):
            yield found

    async def retry(self, turn_id: str) -> bool:
        """Let the messages of a failed turn wait for a turn again. Return whether there was a failed one."""
        return await self._failed.retry(turn_id)

    async def drop(self, turn_id: str) -> bool:
        """Remove a failed turn with its messages. Return whether there was one."""
        return await self._failed.drop(turn_id)

    @asynccontextmanager
    async def worker(
        self,
        *,
        send: Send | None = None,
        client: Any = None,
        try_call: MakeCall | None = None,
        drain: float = 30.0,
        concurrency: int = AT_ONCE,
    ) -> AsyncIterator[Turns]:
        """Run turns within a block: ``async with turns.worker(send=send):``.

        ``send(call)`` sends a call of the Bot API, a dict with ``method`` and its parameters. ``client``: the client
        for ``turn.bot``. ``try_call(method, **params)`` makes one attempt of a call, so that streams are shown while
        they are written; by default that of a ``BotClient``. Without it a stream is a message at the end of its turn.
        At the end of the block turns that run get ``drain`` seconds to end; then they are interrupted, and the next
        worker continues them at once. Any number of processes may run turns.

        Raises ``UsageError`` without a handler or a sender, and if this process has such a worker already.
        """
        check_function(send, "worker(send=...) takes a function of a call, got {}", optional=True)
        check_function(try_call, "worker(try_call=...) takes a function of a method, got {}", optional=True)
        check_number(drain, "drain must be a number of seconds of at least 0, not {}", least=0)
        check_whole(concurrency, "concurrency must be a whole number of at least 1, not {}", least=1)
        if self._handler is None:
            raise UsageError("these turns have no handler; decorate a function with @turns.handler")
        if send is None:
            raise UsageError("worker() needs a sender: turns.worker(send=send), or attach the turns to a router")
        if self.runner is not None:
            raise UsageError("a worker of these turns runs in this process already")
        async with AsyncExitStack() as stack:
            if not self.storage.is_open:
                await self.storage.open()
                stack.push_async_callback(self.storage.close)
            reaches = self.storage.notices_reach_processes
            if try_call is None and isinstance(client, BotMethods):
                try_call = client.try_call
            watch_every = WATCH if reaches else WATCH_WITHOUT_NOTICES
            runner = Runner(self, send, client=client, try_call=try_call, watch_every=watch_every)
            source = self.timers(runner, concurrency)
            self.runner = runner
            stack.callback(self._forget_wakes)
            stack.callback(setattr, self, "runner", None)
            stack.push_async_callback(runner.close)
            if self.storage.shared:
                taking_over = asyncio.create_task(runner.take_over(), name="stepwell-turns-taken-over")
                stack.push_async_callback(asyncio.wait, {taking_over})
                stack.callback(taking_over.cancel)
            source.start()
            stack.push_async_callback(source.stop, timeout=drain)
            yield self

    def subscribe(self, callback: TurnSubscriber) -> Callable[[], None]:
        """Call ``callback(event)`` for every event of these turns. Return a function that unsubscribes."""
        self.subscribers.append(callback)
        return lambda: self.subscribers.remove(callback) if callback in self.subscribers else None

    # For the modules of this package and for tests

    @property
    def handler_function(self) -> Handler:
        assert self._handler is not None
        return self._handler

    def move_to(self, storage: Storage) -> None:
        """Use another storage from now on. Call it before the first update. The present one is not closed."""
        self.storage, self.clock = storage, StorageClock(storage)

    def timers(self, runner: Runner, concurrency: int = AT_ONCE) -> TimerSource:
        """Return the source of conversations that have anything to do."""
        owners = dict.fromkeys(("window", "turn", "send", ""), runner.serve)
        source = serve_timers(
            self.storage, TURNS, owners, flows=[self.name], lease=self.lease, concurrency=concurrency,
            topics=[self._topic], what="turns",
        )  # fmt: skip
        source.skip = self._is_skipped
        return source

    def address(self, conversation: Any) -> Address:
        return self.storage.address(TURNS, (self.bot, conversation))

    def address_of(self, update: Update) -> Address | None:
        """Return the address of the conversation of an update, if it has one."""
        with suppress(Exception):
            conversation = self.conversation_of(update)
            return None if conversation is None else self.address(conversation)
        return None

    def hold(self, held: Callable[[Address], bool] | None) -> None:
        """Begin and continue no turns at the addresses for which ``held`` returns ``True``."""
        self._held = held
        if self.runner is not None:
            self.wake()

    def topic_of(self, address: Address) -> str:
        return "turn:" + hashlib.sha256(address.text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def conversation_of(self, update: Update) -> Any:
        return self._key.extract(update)

    def where_by_key(self, conversation: Any) -> keys.Where:
        return keys.answer_to_key(self._key, conversation)

    def update_id_of(self, update: Update) -> int | str | None:
        if self._update_id is None or isinstance(update, WebUpdate):
            return update.update_id
        found = self._update_id(update)
        check_instance(found, int | str, "update_id=... returns a number or a text, got {}", optional=True)
        return found

    def wake(self, address: Address | None = None, after: float = 0.0) -> None:
        if address is None or after <= 0:
            self.storage.notify_soon(self._topic)
            return
        earlier = self._wakes.pop(address, None)
        if earlier is not None:
            earlier.cancel()
        if self.runner is not None:
            self._wakes[address] = asyncio.get_running_loop().call_later(after, self._woken, address)

    def page_topic_of(self, address: Address) -> str:
        """Return the topic of the notices for pages that show a conversation."""
        return self.topic_of(address).replace("turn:", "page:")

    def show(self, address: Address) -> None:
        self.storage.notify_soon(self.page_topic_of(address))

    def started(self, address: Address, turn: Running, now: float) -> None:
        waited = max(now - turn.messages[0].at, 0.0)
        self.tell(TurnStarted, address, **_of(turn), updates=turn.ids, waited=waited)

    def ended(
        self, address: Address, turn: Running, now: float, how: Literal["answered", "stopped", "failed", "refused"],
        error: str | None,
    ) -> None:  # fmt: skip
        self.tell(TurnEnded, address, **_of(turn), how=how, seconds=max(now - turn.started, 0.0), error=error)

    def tell(self, kind: type[TurnEvent], address: Address, **fields: Any) -> None:
        """Call the subscribers."""
        conversation = decode_key(address.key)[1]
        call_subscribers(self.subscribers, kind(bot=self.bot, conversation=conversation, address=address, **fields))

    def _told(self, address: Address, admission: Admission, update: int | str | None) -> None:
        """Report an update that was taken or refused."""
        self.tell(MessageTaken, address, outcome=admission.outcome, waiting=admission.waiting, update=update)

    async def _waiting_calls(self, admission: Admission, message: Message) -> list[dict[str, Any]]:
        """Return the calls that tell a person what has become of a message."""
        where = message.where
        if self._on_waiting is not None:
            return fit(calls_of(await call_function(self._on_waiting, admission), where), self.formatting)
        texts = {
            "full": "Too many messages wait already, so this one was not taken. Please send it again later.",
            "busy": "I am still busy with your last message, so this one was not taken.",
        }
        return calls_of(texts.get(admission.outcome), where)

    async def failure_calls(self, where: dict[str, Any], error: str) -> list[dict[str, Any]]:
        if isinstance(self._on_failed, str):
            return [{"method": "sendMessage", **where, "text": self._on_failed}] if where and self._on_failed else []
        with suppress(Exception):
            found = await call_function(self._on_failed, where, error)
            return (
                calls_of(found, ())
                if not isinstance(found, str)
                else [{"method": "sendMessage", **where, "text": found}]
            )
        return []

    def where_of(self, record: HeldRecord, turn: Running) -> dict[str, Any]:
        part = message_part(turn.messages[-1].seq)
        stored = record.seal.value("p", part, record.parts[part])
        return keys.params_of(Message.of(stored["update"], stored["at"]).where)

    def tag(self, name: str) -> str:
        return log_tag(self.bot, name)

    def tags_with(self, tags: tuple[str, ...], *, failed: bool) -> tuple[str, ...]:
        tag = self.tag("failed")
        if failed == (tag in tags):
            return tags
        return (*tags, tag) if failed else tuple(each for each in tags if each != tag)

    # Internal

    def _key_of(self, conversation: Any) -> Any:
        """Return a conversation, or that of an update."""
        if not isinstance(conversation, Mapping | Update) and not hasattr(conversation, "update_id"):
            return conversation
        found = self.conversation_of(Update.of(conversation))
        if found is None:
            raise InvalidOption("this update belongs to no conversation; give the key of one, such as (42, 0)")
        return found

    def _is_skipped(self, address: Address) -> bool:
        """Return whether an address is of another bot, or held."""
        if self._held is not None and self._held(address):
            return True
        key = decode_key(address.key)
        return not (isinstance(key, tuple) and len(key) == 2 and key[0] == self.bot)

    def _forget_wakes(self) -> None:
        for handle in self._wakes.values():
            handle.cancel()
        self._wakes.clear()

    def _woken(self, address: Address) -> None:
        self._wakes.pop(address, None)
        self.storage.notify_soon(self._topic)


def _of(turn: Running) -> dict[str, Any]:
    return {"turn": turn.id, "attempt": turn.attempt, "messages": len(turn.messages)}


class _ChatAndTopic(keys.ChatTopic):
    """The chat and its topic, 0 outside of topics. A reply in an ordinary group has a thread too, which is none."""

    def __init__(self) -> None:
        super().__init__(strict_topics=True)

    def extract(self, update: Update) -> tuple[int, int] | None:
        # A stopped draft has the thread of its topic, and nothing that says so.
        is_draft = update.kind == "stopped_message_generation"
        return keys.ChatTopic().extract(update) if is_draft else super().extract(update)
