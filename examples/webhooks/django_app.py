"""The registration bot behind a webhook, with Django: a view and its URL, for a project under WSGI or ASGI.

In the project's urls.py: ``path("bot/", include("examples.webhooks.django_app"))``.
"""

import hmac
import json
import os

import httpx
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from examples.registration import Registration, handlers
from examples.webhooks.outcomes import TEMPORARY, check_sent, logging_final_errors
from stepwell.fsm import FSM, Router

fsm = FSM("registration_bot", storage=os.environ.get("STORAGE", "sqlite:///bot.db"), flows=[Registration])
router = Router(fsm)
router.include(handlers)


@csrf_exempt
@require_POST
def webhook(request: HttpRequest) -> HttpResponse:
    token = request.headers.get("X-Telegram-Bot-Api-Secret-Token", "")
    if not token or not hmac.compare_digest(token.encode(), os.environ["WEBHOOK_SECRET"].encode()):
        return HttpResponse(status=403)
    calls = []
    try:
        with logging_final_errors():
            calls = router.handle_sync(json.loads(request.body))
        for call in calls[:-1]:
            sent = httpx.post(f"{os.environ['BOT_API']}/{call['method']}", json=call)
            check_sent(call, sent.status_code)
    except (*TEMPORARY, httpx.TransportError):
        return HttpResponse(status=503)  # Telegram delivers it again, and nothing is handled twice.
    return JsonResponse(calls[-1]) if calls else HttpResponse()  # The last call travels in the answer.


urlpatterns = [path("webhook", webhook)]
