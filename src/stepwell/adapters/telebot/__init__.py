"""telebot (pyTelegramBotAPI): its states in a Stepwell storage, or Stepwell's conversations.

Keep an existing bot as it is, and change only where its states are stored::

    bot = TeleBot(token, state_storage=StepwellStateStorage("sqlite:///bot.db"))
    bot = AsyncTeleBot(token, state_storage=AsyncStepwellStateStorage("sqlite:///bot.db"))

Or use Stepwell's conversations: call ``setup(bot, fsm)``, and ``ctx = fsm_of(message)`` in a handler.
"""

from stepwell.engine import require

#: The oldest supported release of pyTelegramBotAPI.
MINIMUM = "4.26"
# Before the modules below, which import telebot.
require("telebot", "telebot", distribution="pyTelegramBotAPI", minimum=MINIMUM)

from stepwell.adapters.telebot.confirmation import confirm_handled  # noqa: E402
from stepwell.adapters.telebot.conversations import setup  # noqa: E402
from stepwell.adapters.telebot.current import fsm_of  # noqa: E402
from stepwell.adapters.telebot.objects import register_objects  # noqa: E402
from stepwell.adapters.telebot.storage import AsyncStepwellStateStorage, StepwellStateStorage  # noqa: E402

__all__ = ["AsyncStepwellStateStorage", "StepwellStateStorage", "confirm_handled", "fsm_of", "setup"]

register_objects()
