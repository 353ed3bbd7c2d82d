"""One bot on Slack and on WhatsApp: only the key and the update id are read differently.

python examples/other_platforms.py
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from stepwell import MemoryStorage, Storage
from stepwell.fsm import FSM, Context, DuplicateUpdate, Flow, Router, Update, state


class Survey(Flow, name="survey"):
    rating = state(to=["comment"])
    comment = state(to=[])
    default_state = rating


def talk(ctx: Context, said: str) -> str:
    """Handle a message; independent of the platform."""
    if ctx.state == "rating" and said in list("12345"):
        ctx.update_data(rating=int(said))
        ctx.transition("comment")
        return "Thank you! Anything else?"
    if ctx.state == "comment":
        rating = ctx.data["rating"]
        ctx.clear_flow()
        return f"Noted: {rating} stars, {said!r}."
    ctx.start_flow(Survey)
    return "How was it, from 1 to 5?"


# Slack: an Events API callback. User ids are unique within a team only.


def slack_said(payload: dict[str, Any]) -> str | None:
    """Return the text of a user's message; ``None`` for other events: reactions, messages of bots, the URL check."""
    event = payload.get("event", {})
    by_person = "user" in event and "bot_id" not in event and "subtype" not in event
    return event.get("text") if by_person else None


def slack_key(update: Update) -> tuple[str, str] | None:
    payload = update.raw
    return None if slack_said(payload) is None else (payload["team_id"], payload["event"]["user"])


def slack_bot(storage: Storage | str) -> FSM:
    return FSM(
        "survey_slack",
        storage=storage,
        flows=[Survey],
        key=slack_key,
        update_id=lambda update: update.raw.get("event_id"),  # Slack, too, redelivers unacknowledged events.
    )


async def on_slack_event(fsm: FSM, payload: dict[str, Any]) -> str | None:
    """Return the answer to post; ``None`` for a redelivered event and for one without a user's message.

    A lost answer is not repeated; ``slack_router`` repeats it.
    """
    said = slack_said(payload)
    if said is None:
        return None
    answer: str | None = await fsm.handle(payload, lambda ctx: talk(ctx, said))
    return answer


def slack_router(fsm: FSM) -> Router:
    """Return a router for answers that must not be lost: it stores them, and repeats them for a redelivered event.

    ``await router.handle(payload)`` returns the calls of Slack's Web API to make before you acknowledge the event.
    """
    router = Router(fsm)

    @router.on(lambda ctx: slack_said(ctx.update.raw) is not None)
    def message(ctx: Context) -> None:
        event = ctx.update.raw["event"]
        ctx.call("chat.postMessage", channel=event["channel"], text=talk(ctx, event["text"]))

    return router


# WhatsApp: one notification may contain several messages, each of which is an update.


def whatsapp_messages(payload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the text messages of a notification, each with the number that received it; skip pictures and statuses."""
    for value in (change["value"] for entry in payload["entry"] for change in entry["changes"]):
        for message in value.get("messages", []):
            if "text" in message:
                yield {**message, "number": value["metadata"]["phone_number_id"]}


def whatsapp_bot(storage: Storage | str) -> FSM:
    return FSM(
        "survey_whatsapp",
        storage=storage,
        flows=[Survey],
        key=lambda update: (update.raw["number"], update.raw["from"]),
        update_id=lambda update: update.raw["id"],
    )


async def on_whatsapp_notification(fsm: FSM, payload: dict[str, Any]) -> list[tuple[str, str]]:
    """Return pairs of recipient and answer. As above, only the router repeats a lost answer."""
    answers = []
    for message in whatsapp_messages(payload):
        try:
            async with fsm.conversation(message) as ctx:
                answer = talk(ctx, message["text"]["body"])
        except DuplicateUpdate:
            continue
        answers.append((message["from"], answer))
    return answers


def whatsapp_router(fsm: FSM) -> Router:
    """Return a router; ``await router.handle(message)`` returns the calls for one of ``whatsapp_messages``."""
    router = Router(fsm)

    @router.on()
    def message(ctx: Context) -> None:
        received = ctx.update.raw
        ctx.call("messages", to=received["from"], text={"body": talk(ctx, received["text"]["body"])})

    return router


async def main() -> None:
    async with MemoryStorage() as storage:
        router = slack_router(slack_bot(storage))
        for number, text in enumerate(["hello", "5", "5", "great tea"]):
            event_id = f"Ev{number if text != '5' else 'five'}"  # The five is delivered twice.
            event = {"type": "message", "channel": "D1", "user": "U1", "text": text}
            for call in await router.handle({"team_id": "T1", "event_id": event_id, "event": event}):
                print(f"{text:<10} {call['text']}")


if __name__ == "__main__":
    asyncio.run(main())
