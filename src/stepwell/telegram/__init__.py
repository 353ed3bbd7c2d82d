"""Telegram without another framework: call the Bot API, and send the answers of a ``Router``.

Install it with ``pip install 'stepwell[bot]'``.
"""

from stepwell.errors import BotApiError, BotBlocked, BotUnavailable
from stepwell.telegram.broadcast import BroadcastResult, broadcast, cancel_broadcast
from stepwell.telegram.client import BotClient
from stepwell.telegram.files import InputFile
from stepwell.telegram.limits import SendLimits
from stepwell.telegram.polling import run_polling, run_polling_sync
from stepwell.telegram.sending import Sender
from stepwell.telegram.token import find_token
from stepwell.telegram.webhook import webhook

__all__ = [
    "BotApiError",
    "BotBlocked",
    "BotClient",
    "BotUnavailable",
    "BroadcastResult",
    "InputFile",
    "SendLimits",
    "Sender",
    "broadcast",
    "cancel_broadcast",
    "find_token",
    "run_polling",
    "run_polling_sync",
    "webhook",
]
