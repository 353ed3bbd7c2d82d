"""The registration bot behind a webhook, with Flask, which has no event loop: ``handle_sync`` brings its own.

BOT_API=https://api.telegram.org/bot<token> WEBHOOK_SECRET=... flask --app examples.webhooks.flask_app run
"""

import hmac
import os

import httpx
from flask import Flask, Response, jsonify, request

from examples.registration import Registration, handlers
from examples.webhooks.outcomes import TEMPORARY, check_sent, logging_final_errors
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
    calls = []
    try:
        with logging_final_errors():
            calls = router.handle_sync(request.get_json())
        for call in calls[:-1]:
            sent = httpx.post(f"{os.environ['BOT_API']}/{call['method']}", json=call)
            check_sent(call, sent.status_code)
    except (*TEMPORARY, httpx.TransportError):
        return Response(status=503)  # Telegram delivers it again, and nothing is handled twice.
    return jsonify(calls[-1]) if calls else Response()  # The last call travels in the answer.
