"""Stepwell's conversations in telebot's handlers: one claim and one commit for each update.

telebot has no hook around the handlers of an update, and its middlewares do not see ``update_id``. So ``setup``
replaces methods of the bot object.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from telebot import TeleBot
from telebot.async_telebot import AsyncTeleBot

from stepwell import sync
from stepwell.adapters.framework.conversations import UpdateConversation, check_flows
from stepwell.adapters.framework.retry import TEMPORARY
from stepwell.adapters.framework.sending import MakeCall, make_call, refusal_of, sender
from stepwell.adapters.telebot import filters
from stepwell.adapters.telebot.calls import async_call_bot, call_bot, pause_of
from stepwell.adapters.telebot.current import HandledEvent, remember, update_of
from stepwell.adapters.telebot.order import KeyOrder
from stepwell.engine import call_function, encode_key
from stepwell.errors import UsageError
from stepwell.fsm import FSM, Update
from stepwell.options import check_instance

__all__ = ["BotConversations", "setup"]

logger: logging.Logger = logging.getLogger(__name__)


def setup(bot: TeleBot | AsyncTeleBot, fsm: FSM) -> None:
    """Let the handlers of a bot use conversations: ``ctx = fsm_of(message)``.

    Each update makes one claim and one commit. A handler that raises changes nothing. Handlers take the filters
    ``fsm_state=``, ``fsm_flow=`` and ``fsm_in_flow=``. Timers answer through the bot. They run from the first poll or
    update until ``stop_bot()``, or until the polling of an ``AsyncTeleBot`` ends.

    Raises ``UsageError`` if it was called for this bot before.

    Example::

        from telebot import TeleBot
        from stepwell.adapters.telebot import fsm_of, setup

        bot = TeleBot("42:token")
        setup(bot, fsm)

        @bot.message_handler(fsm_in_flow=False)
        def register(message):
            fsm_of(message).start_flow(Registration)
    """
    check_instance(bot, TeleBot | AsyncTeleBot, "setup(bot, fsm) takes a TeleBot or an AsyncTeleBot, got {}")
    check_instance(fsm, FSM, "setup(bot, fsm) takes an FSM, got {}")
    if hasattr(bot, _MARK):
        raise UsageError("setup() was already called for this bot; put all flows in one FSM(flows=[...])")
    # Not typed in telebot.
    handle_exception: Any = bot._handle_exception
    if isinstance(bot, TeleBot):
        make: MakeCall = partial(call_function, call_bot, bot.token)
        _replace_methods(bot, BotConversations(bot, fsm, make, partial(call_function, handle_exception)))
    else:
        make = partial(async_call_bot, bot.token)
        _replace_async_methods(bot, BotConversations(bot, fsm, make, handle_exception))


class BotConversations:
    """The conversations of one bot."""

    def __init__(
        self, bot: Any, fsm: FSM, make: MakeCall, handle_exception: Callable[[Exception], Awaitable[bool]]
    ) -> None:
        self.fsm: FSM = fsm
        #: Whether the timers run.
        self.running: bool = False
        self._bot = bot
        self._make = make
        self._handle_exception = handle_exception
        self._starting = asyncio.Lock()
        self._handling: set[HandledEvent] = set()
        self._idle = asyncio.Event()
        self._stopping: set[asyncio.Task[None]] = set()

    def key_of(self, event: Any) -> str | None:
        """Return the key of an event as text; ``None`` if it has no valid one."""
        try:
            key = self.fsm.key.extract(update_of(event))
            return None if key is None else encode_key(key)
        except Exception:  # noqa: BLE001 the conversation raises it again, in the thread that handles the update
            return None

    async def start(self) -> None:
        """Check the filters, open the storage and start the timers."""
        async with self._starting:
            if not self.running:
                check_flows(self.fsm, filters.conditions_of(self._bot))
                if self.fsm.send is None:
                    self.fsm.send = sender(self._make, pause_of)
                await self.fsm.__aenter__()
                self.running = True

    async def stop(self) -> None:
        """Stop the timers when all handlers have ended, and close the storage if ``start()`` opened it."""
        if _current.get() is not None:
            # A handler stops its bot. Its conversation is written first.
            task = asyncio.get_running_loop().create_task(self._stop())
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)
        else:
            await self._stop()

    async def _stop(self) -> None:
        async with self._starting:
            while self._handling:
                self._idle.clear()
                await self._idle.wait()
            if self.running:
                self.running = False
                await self.fsm.__aexit__(None, None, None)

    async def handle(self, event: Any, handlers: Callable[[HandledEvent], Awaitable[None]]) -> None:
        """Call the handlers of an event in its conversation, and make its calls."""
        if not self.running:
            await self.start()
        handled = remember(event)
        self._handling.add(handled)
        conversation = UpdateConversation(self.fsm, handled.update)
        try:
            async with conversation as ctx:
                if ctx is not None:
                    handled.ctx = ctx
                    await handlers(handled)
                    conversation.failed = handled.error
            for call in conversation.calls:
                await self._call(call, conversation)
        finally:
            self._handling.discard(handled)
            if not self._handling:
                self._idle.set()

    async def _call(self, call: dict[str, Any], conversation: UpdateConversation) -> None:
        try:
            await make_call(self._make, pause_of, call)
        except Exception as error:  # noqa: BLE001 it is passed to the exception handler
            if pause_of(error) is None:
                await conversation.keep_refused(call, refusal_of(call["method"], error))
            # The changes are written, so the update must not be delivered again: the call could fail every time.
            if not await self._is_handled(error):
                reason = str(error).replace(self._bot.token, "<token>")
                logger.error("%s failed after the update was handled: %s", call["method"], reason)  # noqa: TRY400

    async def _is_handled(self, error: Exception) -> bool:
        try:
            return await self._handle_exception(error)
        except Exception as raised:  # noqa: BLE001 it must not fail the update
            # Without the traceback, which has the error of the call and with it the token.
            logger.error("the exception handler raised %s for a call that failed", type(raised).__name__)  # noqa: TRY400
            return False


def _replace_methods(bot: TeleBot, conversations: BotConversations) -> None:
    # Not typed in telebot.
    methods: Any = bot
    process, run, get_updates = (
        methods.process_new_updates, methods._run_middlewares_and_handler, methods.get_updates
    )  # fmt: skip
    handle_exception, execute, stop = methods._handle_exception, methods._exec_task, methods.stop_bot
    order = KeyOrder()

    def get_updates_and_start(*args: Any, **kwargs: Any) -> Any:
        if not conversations.running:
            sync(conversations.start())
        return get_updates(*args, **kwargs)

    def process_new_updates(updates: Any) -> None:
        # One by one: telebot sorts the updates of a list by their type, and so changes their order.
        for update in updates:
            _remember(update)
            last = bot.last_update_id
            try:
                process([update])
            except TEMPORARY:
                # Polling gets the update again.
                bot.last_update_id = last
                raise

    def run_in_conversation(message: Any, *args: Any, **kwargs: Any) -> None:
        def handlers(handled: HandledEvent) -> None:
            token = _current.set(handled)
            try:
                run(message, *args, **kwargs)
            finally:
                _current.reset(token)

        sync(conversations.handle(message, lambda handled: call_function(handlers, handled)))

    def exec_task(task: Any, *args: Any, **kwargs: Any) -> None:
        key = conversations.key_of(args[0]) if task is run_in_conversation and bot.threaded else None
        if key is None:
            execute(task, *args, **kwargs)
            return
        turn = order.turn(key)

        def run_in_turn() -> None:
            with turn:
                run_in_conversation(*args, **kwargs)

        execute(run_in_turn)

    def note_exception(exception: Exception) -> Any:
        _note(exception)
        return handle_exception(exception)

    def stop_bot() -> None:
        stop()
        sync(conversations.stop())

    _set(bot, conversations, get_updates=get_updates_and_start, process_new_updates=process_new_updates)
    _set(bot, conversations, _run_middlewares_and_handler=run_in_conversation, _handle_exception=note_exception)
    _set(bot, conversations, _exec_task=exec_task, stop_bot=stop_bot)
    for each in filters.CONDITIONS:
        bot.add_custom_filter(filters.BotFilter(each))


def _replace_async_methods(bot: AsyncTeleBot, conversations: BotConversations) -> None:
    # Not typed in telebot.
    methods: Any = bot
    process, run, get_updates = (
        methods.process_new_updates, methods._run_middlewares_and_handlers, methods.get_updates
    )  # fmt: skip
    handle_exception, close = methods._handle_exception, methods.close_session

    async def get_updates_and_start(*args: Any, **kwargs: Any) -> Any:
        if not conversations.running:
            await conversations.start()
        return await get_updates(*args, **kwargs)

    async def process_new_updates(updates: Any) -> None:
        for update in updates:
            _remember(update)
        # One by one: telebot sorts the updates of a list by their type, and so changes their order.
        ended = await asyncio.gather(*(process([update]) for update in updates), return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def run_in_conversation(message: Any, *args: Any, **kwargs: Any) -> None:
        async def handlers(handled: HandledEvent) -> None:
            token = _current.set(handled)
            try:
                await run(message, *args, **kwargs)
            finally:
                _current.reset(token)

        await conversations.handle(message, handlers)

    async def note_exception(exception: Exception) -> Any:
        _note(exception)
        return await handle_exception(exception)

    async def close_session() -> None:
        await conversations.stop()
        await close()

    _set(bot, conversations, get_updates=get_updates_and_start, process_new_updates=process_new_updates)
    _set(bot, conversations, _run_middlewares_and_handlers=run_in_conversation, _handle_exception=note_exception)
    _set(bot, conversations, close_session=close_session)
    for each in filters.CONDITIONS:
        bot.add_custom_filter(filters.AsyncBotFilter(each))


def _set(bot: object, conversations: BotConversations, **methods: Any) -> None:
    setattr(bot, _MARK, conversations)
    for name, method in methods.items():
        setattr(bot, name, method)


def _remember(given: Any) -> None:
    update = Update(given)
    if update.event is not None:
        remember(update.event, update)


def _note(exception: Exception) -> None:
    """Mark the update that is being handled as failed: telebot itself catches the exception."""
    handled = _current.get()
    if handled is not None:
        handled.error = exception


#: The attribute of a bot that ``setup`` was called for.
_MARK = "_stepwell_conversations"
_current: ContextVar[HandledEvent | None] = ContextVar("stepwell_telebot_event", default=None)
