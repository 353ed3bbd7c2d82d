"""The registration bot behind a webhook, with Django: a view and its URL, for a project under WSGI or ASGI.

In the project's urls.py: ``path("bot/", include("examples.webhooks.django_app"))``.
"""

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from examples.webhooks.bot import make_webhook
from stepwell import sync

bot = make_webhook()


@csrf_exempt
@require_POST
def webhook(request: HttpRequest) -> HttpResponse:
    secret = request.headers.get("X-Telegram-Bot-Api-Secret-Token", "")
    return HttpResponse(status=sync(bot.handle(secret, request.body)))


urlpatterns = [path("webhook", webhook)]
