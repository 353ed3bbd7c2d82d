"""The registration bot behind a webhook, with Flask, which has no event loop: ``sync`` runs the library's own.

BOT_TOKEN=... WEBHOOK_SECRET=... flask --app examples.webhooks.flask_app:make_app run
"""

from flask import Flask, Response, request

from examples.webhooks.bot import make_webhook
from stepwell import sync


def make_app() -> Flask:
    bot = make_webhook()
    app = Flask(__name__)

    @app.post("/webhook")
    def webhook() -> Response:
        secret = request.headers.get("X-Telegram-Bot-Api-Secret-Token", "")
        return Response(status=sync(bot.handle(secret, request.get_data())))

    return app
