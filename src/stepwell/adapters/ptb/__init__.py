"""python-telegram-bot 22: keep the data of its bots in a Stepwell storage.

Keep an existing bot as it is, and change only where its data is stored::

    persistence = StepwellPersistence("sqlite:///bot.db")
    application = ApplicationBuilder().token(token).persistence(persistence).build()
"""

from stepwell._optional import require

#: The oldest supported release of python-telegram-bot, and the first one that is not known.
MINIMUM, BELOW = "22.0", "23"
# Before the modules below, which import telegram.
require("telegram", "ptb", distribution="python-telegram-bot", minimum=MINIMUM, below=BELOW)

from stepwell.adapters.ptb.application import install  # noqa: E402
from stepwell.adapters.ptb.conversation import ConversationHandler  # noqa: E402
from stepwell.adapters.ptb.persistence import StepwellPersistence  # noqa: E402

__all__ = ["ConversationHandler", "StepwellPersistence"]

install()
