"""The application that each worker of ``stepwell run --webhook`` serves."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

from stepwell.botfile import load_router
from stepwell.cli.run import set_up_logging, webhook_secret
from stepwell.telegram import find_token, webhook
from stepwell.telegram.webhook import Webhook

__all__ = ["make_app"]


def make_app() -> Webhook:
    """Return the webhook of the bot, configured by environment variables."""
    set_up_logging()
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_stop_with_parent, name="stepwell-parent", daemon=True).start()
    router = load_router(Path(os.environ["STEPWELL_BOT_FILE"]), os.environ.get("STEPWELL_STORAGE"))
    token = find_token()
    return webhook(router, secret_token=webhook_secret(token), token=token, api=os.environ["BOT_API"])


def _stop_with_parent() -> None:
    """Stop this worker when its parent is killed: it would occupy the port, and the next start would fail."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
