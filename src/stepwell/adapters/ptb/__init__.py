"""python-telegram-bot 22: its conversations and data in a Stepwell storage, or Stepwell's own.

Keep an existing bot as it is, import ``ConversationHandler`` from here, and change where its data is stored::

    persistence = StepwellPersistence("sqlite:///bot.db")
    application = ApplicationBuilder().token(token).persistence(persistence).build()

Or use Stepwell's conversations: call ``setup(application, fsm)``, and ``ctx = fsm_of(context)`` in a handler.
"""

from stepwell.engine import require

#: The oldest supported release of python-telegram-bot, and the first one that is not known.
MINIMUM, BELOW = "22.0", "23"
# Before the modules below, which import telegram.
require("telegram", "ptb", distribution="python-telegram-bot", minimum=MINIMUM, below=BELOW)

from stepwell.adapters.ptb.application import attach_turns, confirm_handled, install, setup  # noqa: E402
from stepwell.adapters.ptb.conversation import ConversationHandler  # noqa: E402
from stepwell.adapters.ptb.conversations import fsm_of  # noqa: E402
from stepwell.adapters.ptb.filters import ConversationFilter, album, fsm_flow, fsm_in_flow, fsm_state  # noqa: E402
from stepwell.adapters.ptb.objects import register_objects  # noqa: E402
from stepwell.adapters.ptb.persistence import StepwellPersistence  # noqa: E402

__all__ = [
    "ConversationFilter",
    "ConversationHandler",
    "StepwellPersistence",
    "album",
    "attach_turns",
    "confirm_handled",
    "fsm_flow",
    "fsm_in_flow",
    "fsm_of",
    "fsm_state",
    "setup",
]

register_objects()
install()
