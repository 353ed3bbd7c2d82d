"""Stepwell's conversations in aiogram's handlers: ``setup(dispatcher, fsm)`` and its middleware."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from aiogram import BaseMiddleware, Bot, Dispatcher
from aiogram.dispatcher.event.bases import UNHANDLED
from aiogram.fsm.storage.memory import MemoryStorage
from aiogram.types import ErrorEvent, Message, TelegramObject, Update

from stepwell.adapters.aiogram.bots import BotMachines
from stepwell.adapters.aiogram.calls import call_bot, client_of, pause_of
from stepwell.adapters.aiogram.filters import filters_of
from stepwell.adapters.aiogram.objects import as_json, bot_of_objects
from stepwell.adapters.framework.conversations import UpdateConversation, check_flows, collect_albums
from stepwell.adapters.framework.sending import make_call, refusal_of
from stepwell.errors import UsageError
from stepwell.fsm import FSM, Context
from stepwell.fsm.engine import Conversation
from stepwell.options import check_instance

__all__ = ["setup"]

logger: logging.Logger = logging.getLogger(__name__)


def setup(dispatcher: Dispatcher, fsm: FSM, *, bot: Bot | None = None) -> None:
    """Pass every handler of a dispatcher its conversation, as a parameter named ``ctx``.

    Each update makes one claim and one commit. A handler that raises changes nothing, even if an error handler
    catches the exception. Timers run from the dispatcher's startup to its shutdown and answer through its bot.
    Pass ``bot=`` if a webhook's startup does not know it, as with ``setup_application(app, dispatcher)``.

    Raises ``UsageError`` if it was called for this dispatcher before.

    Example::

        from aiogram import Dispatcher
        from stepwell.adapters.aiogram import setup

        dispatcher = Dispatcher(disable_fsm=True)
        setup(dispatcher, fsm)

        @dispatcher.message()
        async def register(message, ctx):
            ctx.start_flow(Registration)
    """
    check_instance(dispatcher, Dispatcher, "setup(dispatcher, fsm) takes a Dispatcher, the root of all routers, got {}")
    check_instance(fsm, FSM, "setup(dispatcher, fsm) takes an FSM, got {}")
    middlewares = dispatcher.update.outer_middleware
    if any(isinstance(each, _Conversations) for each in middlewares):
        raise UsageError("setup() was already called for this dispatcher; put all flows in one FSM(flows=[...])")
    if dispatcher.fsm in list(middlewares) and isinstance(dispatcher.storage, MemoryStorage):
        warnings.warn(
            "aiogram's own FSM also runs, on MemoryStorage, and loses its states at every restart; turn it off with "
            "Dispatcher(disable_fsm=True), or keep its states with Dispatcher(storage=StepwellStorage(storage))",
            UserWarning,
            stacklevel=2,
        )
    conversations = _Conversations(dispatcher, fsm, bot)
    fsm.albums = conversations
    # Inside aiogram's ErrorsMiddleware, so that an exception gets here before an error handler catches it.
    middlewares.register(conversations)
    dispatcher.startup.register(conversations.start)
    dispatcher.shutdown.register(conversations.stop)


class _Conversations(BaseMiddleware):
    def __init__(self, dispatcher: Dispatcher, fsm: FSM, bot: Bot | None) -> None:
        self._dispatcher = dispatcher
        self._machines = BotMachines(fsm)
        self._bot = bot
        self._checked = False
        #: The bots that have got updates or were there at the start, by their ids.
        self._bots: dict[int, Bot] = {}

    async def __call__(
        self,
        handler: Callable[[TelegramObject, dict[str, Any]], Awaitable[Any]],
        event: TelegramObject,
        data: dict[str, Any],
    ) -> Any:
        if not self._checked:
            self._check_flows()
        album = _album.get()
        if album is not None and album.ctx is data.get("ctx"):
            # The machine writes what the handler changes, and makes its calls.
            try:
                return await handler(event, data)
            except Exception as error:
                album.failed = error
                raise
        bot: Bot = data["bot"]
        bot_of_objects.set(bot)
        fsm = await self._machines.of(bot.id, client_of(bot))
        self._bots[bot.id] = bot
        result: Any = None
        conversation = UpdateConversation(fsm, event)
        async with conversation as ctx:
            if ctx is not None and ctx.update.media_group_id is not None and conversation.add_to_album(as_json(event)):
                # Its handler is called when the album is complete.
                return None
            if ctx is not None:
                data["ctx"] = ctx
                result = await handler(event, data)
        for call in conversation.calls:
            try:
                await make_call(partial(call_bot, bot), pause_of, call)
            except Exception as error:
                if pause_of(error) is not None:
                    raise
                await conversation.keep_refused(call, refusal_of(call["method"], error))
                await self._report(event, data, call, error)
        return result

    async def start(self, **data: Any) -> None:
        self._check_flows()
        known: tuple[Bot | None, ...] = (self._bot, *data.get("bots", ()), data.get("bot"))
        bots = [bot for bot in known if bot is not None]
        self._bots.update({bot.id: bot for bot in bots})
        await self._machines.start([client_of(bot) for bot in self._bots.values()])

    async def stop(self) -> None:
        await self._machines.stop()

    @property
    def collects_albums(self) -> bool:
        """Whether a handler has the filter ``album()``."""
        return collect_albums(each.inner for each in filters_of(self._dispatcher))

    async def handle_album(self, conversation: Conversation, ctx: Context) -> None:
        """Call the handlers of an album."""
        bot = self._bots[self._machines.bot_of(ctx._fsm)]
        ctx._album = [Message.model_validate(each, context={"bot": bot}) for each in ctx.album]
        update = Update.model_validate(ctx.update.raw, context={"bot": bot})
        album = _RunningAlbum(ctx)
        token = _album.set(album)
        try:
            await self._dispatcher.feed_update(bot, update, ctx=ctx)
        finally:
            _album.reset(token)
        if album.failed is not None:
            # An error handler has caught it.
            raise album.failed

    async def _report(self, event: Any, data: dict[str, Any], call: dict[str, Any], error: Exception) -> None:
        """Pass a call that failed for good to the error handlers, or log it."""
        # Raised, it would make every delivery of the update fail: its changes are written, and only its calls are made.
        failed, response = ErrorEvent(update=event, exception=error), UNHANDLED
        # A duplicate has no context for an error handler, which was called for the first delivery.
        if "ctx" in data:
            try:
                response = await self._dispatcher.propagate_event(update_type="error", event=failed, **data)
            except Exception:
                logger.exception("an error handler raised for a call that failed")
        if response is UNHANDLED:
            logger.error("%s failed after the update was handled: %s", call["method"], error)

    def _check_flows(self) -> None:
        check_flows(self._machines.fsm, [each.inner for each in filters_of(self._dispatcher)])
        self._checked = True


class _RunningAlbum:
    """An album that is being handled."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        #: The error of its handler.
        self.failed: Exception | None = None


_album: ContextVar[_RunningAlbum | None] = ContextVar("stepwell_aiogram_album", default=None)
