"""aiogram 3: its states in a Stepwell storage, or Stepwell's conversations in its handlers.

Keep an existing bot as it is, and change only where its states are stored::

    storage = open_storage("sqlite:///bot.db")
    dispatcher = Dispatcher(storage=StepwellStorage(storage), events_isolation=StepwellIsolation(storage))

Or use Stepwell's conversations: call ``setup(dispatcher, fsm)``, and give a handler a parameter named ``ctx``.
"""

from stepwell.engine import require

#: The oldest supported release of aiogram.
MINIMUM = "3.21"
# Before the modules below, which import aiogram.
require("aiogram", "aiogram", minimum=MINIMUM)

from stepwell.adapters.aiogram.exempt import without_isolation  # noqa: E402
from stepwell.adapters.aiogram.filters import ContextFilter, album, fsm_flow, fsm_in_flow, fsm_state  # noqa: E402
from stepwell.adapters.aiogram.middleware import setup  # noqa: E402
from stepwell.adapters.aiogram.objects import register_objects  # noqa: E402
from stepwell.adapters.aiogram.storage import StepwellIsolation, StepwellStorage  # noqa: E402
from stepwell.adapters.aiogram.turns import attach_turns  # noqa: E402

__all__ = [
    "ContextFilter",
    "StepwellIsolation",
    "StepwellStorage",
    "album",
    "attach_turns",
    "fsm_flow",
    "fsm_in_flow",
    "fsm_state",
    "setup",
    "without_isolation",
]

register_objects()
