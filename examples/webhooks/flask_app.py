"""The registration bot behind a webhook, with Flask, which has no event loop: ``handle_sync`` brings its own.

BOT_API=https://api.telegram.org/bot<token> WEBHOOK_SECRET=... flask --app examples.webhooks.flask_app run
"""

import hmac
import os

import httpx
from flask import Flask, Response, jsonify, request

from examples.registration import Registration, handlers
from stepwell.errors import Busy, StorageError
from stepwell.fsm import FSM, Router

fsm = FSM("registration_bot", storage=os.environ.get("STORAGE", "sqlite:///bot.db"), flows=[Registration])
router = Router(fsm)
router.include(handlers)
app = Flask(__name__)


@app.post("/webhook")
def webhook() -> Response:
    token = request.headers.get("X-Telegram-Bot-Api-Secret-Token", "")
    if not token or not hmac.compare_digest(token.encode(), os.environ["WEBHOOK_SECRET"].encode()):
        return Response(status=403)
    try:
        calls = router.handle_sync(request.get_json())
    except (Busy, StorageError):
        return Response(status=503)  # Telegram delivers it again, and nothing is handled twice.
    for call in calls[:-1]:
        httpx.post(f"{os.environ['BOT_API']}/{call['method']}", json=call).raise_for_status()
    return jsonify(calls[-1]) if calls else Response()  # The last call travels in the answer.
