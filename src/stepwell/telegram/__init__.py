"""Telegram without another framework: call the Bot API, and send the answers of a ``Router``.

Install it with ``pip install 'stepwell[bot]'``.
"""

from stepwell.errors import BotApiError, BotBlocked, BotUnavailable
from stepwell.telegram.calls.client import BotClient
from stepwell.telegram.calls.files import InputFile
from stepwell.telegram.calls.token import find_token
from stepwell.telegram.receiving.polling import run_polling, run_polling_sync
from stepwell.telegram.receiving.webhook import Webhook, webhook
from stepwell.telegram.sending.broadcast import BroadcastResult, broadcast, cancel_broadcast
from stepwell.telegram.sending.chat_stream import chat_stream
from stepwell.telegram.sending.limits import SendLimits
from stepwell.telegram.sending.sender import Sender
from stepwell.telegram.web_app import read_init_data
from stepwell.texts import Writer

__all__ = [
    "BotApiError",
    "BotBlocked",
    "BotClient",
    "BotUnavailable",
    "BroadcastResult",
    "InputFile",
    "SendLimits",
    "Sender",
    "Webhook",
    "Writer",
    "broadcast",
    "cancel_broadcast",
    "chat_stream",
    "find_token",
    "read_init_data",
    "run_polling",
    "run_polling_sync",
    "webhook",
]
