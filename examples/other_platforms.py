"""One bot on Slack and on WhatsApp: say how to read a key and an id, and the rest is the same.

python examples/other_platforms.py
"""

import asyncio
from typing import Any

from stepwell import MemoryStorage, Storage
from stepwell.fsm import FSM, Context, DuplicateUpdate, Flow, Update, state


class Survey(Flow, name="survey"):
    rating = state(to=["comment"])
    comment = state(to=[])
    default_state = rating


def talk(ctx: Context, said: str) -> str:
    """The conversation itself knows nothing of platforms."""
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


# Slack: an Events API callback. A user is one only within a team.


def slack_key(update: Update) -> tuple[str, str] | None:
    event = update.raw["event"]
    return (update.raw["team_id"], event["user"]) if "user" in event else None


def slack_bot(storage: Storage | str) -> FSM:
    return FSM(
        "survey_slack",
        storage=storage,
        flows=[Survey],
        key=slack_key,
        update_id=lambda update: update.raw["event_id"],  # Slack, too, delivers again what was not acknowledged.
    )


async def on_slack_event(fsm: FSM, payload: dict[str, Any]) -> str | None:
    """What to post; ``None`` for an event that was handled before."""
    answer: str | None = await fsm.handle(payload, lambda ctx: talk(ctx, payload["event"]["text"]))
    return answer


# WhatsApp: one notification may bring several messages, so key and id are given for each by hand.


def whatsapp_bot(storage: Storage | str) -> FSM:
    return FSM("survey_whatsapp", storage=storage, flows=[Survey])


async def on_whatsapp_notification(fsm: FSM, payload: dict[str, Any]) -> list[tuple[str, str]]:
    """Whom to answer what."""
    answers = []
    for change in (change for entry in payload["entry"] for change in entry["changes"]):
        number = change["value"]["metadata"]["phone_number_id"]
        for message in change["value"].get("messages", []):
            key = (number, message["from"])
            try:
                async with fsm.conversation(message, key=key, update_id=message["id"]) as ctx:
                    answer = talk(ctx, message["text"]["body"])
            except DuplicateUpdate:
                continue
            answers.append((message["from"], answer))
    return answers


async def main() -> None:
    async with MemoryStorage() as storage:
        bot = slack_bot(storage)
        for number, text in enumerate(["hello", "5", "5", "great tea"]):
            event_id = f"Ev{number if text != '5' else 'five'}"  # The five is delivered twice.
            payload = {"team_id": "T1", "event_id": event_id, "event": {"user": "U1", "text": text}}
            print(f"{text:<10} {await on_slack_event(bot, payload)}")


if __name__ == "__main__":
    asyncio.run(main())
