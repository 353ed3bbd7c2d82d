"""Albums in the handlers of python-telegram-bot: their messages are handled as one update."""

from __future__ import annotations

from typing import Any
from weakref import ref

from telegram import Message, Update

from stepwell.adapters.framework.conversations import UpdateConversation, collect_albums
from stepwell.adapters.ptb.conversations import HeldAlbum, album_in_handlers
from stepwell.adapters.ptb.filters import filters_in
from stepwell.adapters.ptb.objects import AnyApplication
from stepwell.fsm import Context
from stepwell.fsm.engine import Conversation

__all__ = ["ApplicationAlbums"]


class ApplicationAlbums:
    """Calls the handlers of albums of one application."""

    def __init__(self, application: AnyApplication) -> None:
        # The machine may outlive it.
        self._application = ref(application)

    @property
    def collects_albums(self) -> bool:
        """Whether a handler has the filter ``album()``."""
        application = self._application()
        return application is not None and collect_albums(each.inner for each in filters_in(application))

    async def handle_album(self, conversation: Conversation, ctx: Context[Any]) -> None:
        """Call the handlers of an album."""
        application = self._application()
        assert application is not None
        ctx._album = [Message.de_json(each, application.bot) for each in ctx.album]
        update = Update.de_json(ctx.update.raw, application.bot)
        token = album_in_handlers.set(HeldAlbum(UpdateConversation.of_album(conversation, ctx), ctx))
        try:
            await application.process_update(update)
        finally:
            album_in_handlers.reset(token)
