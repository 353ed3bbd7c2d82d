"""Telegram without another framework: call the Bot API, and send the answers of a ``Router``.

Install it with ``pip install 'stepwell[bot]'``.
"""

from stepwell.errors import BotApiError, BotBlocked, BotUnavailable
from stepwell.telegram.client import BotClient
from stepwell.telegram.files import InputFile
from stepwell.telegram.limits import SendLimits
from stepwell.telegram.sending import Sender
from stepwell.telegram.token import find_token

__all__ = [
    "BotApiError",
    "BotBlocked",
    "BotClient",
    "BotUnavailable",
    "InputFile",
    "SendLimits",
    "Sender",
    "find_token",
]
