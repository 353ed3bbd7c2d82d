"""News: people subscribe, and the editor sends to all of them. A kill in the middle continues at the next person.

stepwell play broadcast.py
EDITOR_ID=4242 BOT_TOKEN=... stepwell run broadcast.py
"""

import os
from typing import Any

from stepwell import Storage
from stepwell.fsm import FSM, Context, Flow, Router, button, callback, command, fsm_flow, keyboard, kind, state
from stepwell.nodes import Node, linear
from stepwell.telegram import BroadcastResult, broadcast

#: Who may send; by default the first person of the playground.
EDITOR = int(os.environ.get("EDITOR_ID", "42"))


class Reader(Flow, name="reader"):
    subscribed = state(to=[])
    default_state = subscribed


def is_editor(ctx: Context) -> bool:
    return ctx.update.user is not None and ctx.update.user.id == EDITOR


def make_router(storage: Storage | str) -> Router:
    fsm = FSM("news", storage=storage, flows=[Reader])
    router = Router(fsm)
    editor = router.scope(is_editor)

    class Collect(Node):
        """Who gets it is stored before the first message, so that a restart has the same list."""

        async def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["chats"] = [entry.key[0] async for entry in fsm.find(flow="reader")]

    class Send(Node):
        def prep(self, shared: dict[str, Any]) -> dict[str, Any]:
            return shared

        async def exec(self, news: dict[str, Any]) -> BroadcastResult:
            assert fsm.client is not None
            # A broadcast of this id that a kill has interrupted goes on.
            number = f"{news['id']}-messages"
            return await broadcast(fsm.client, news["chats"], news["text"], storage=fsm.storage, flow_id=number)

        async def post(self, shared: dict[str, Any], news: Any, result: BroadcastResult) -> None:
            for chat in result.blocked_chats:
                await fsm.forget(chat=int(chat))
            async with fsm.conversation(key=shared["editor"]) as ctx:
                ctx.answer(f"Done: {result.sent} got it, {result.blocked} have blocked me, {result.failed} failed.")

    # If Telegram is away for longer than the client waits, the broadcast goes on later.
    news = linear(Collect, Send(max_retries=60, wait=60), name="news", storage=fsm.storage)
    router.run_workers(news)

    @router.on(command("start"), fsm_flow(None))
    async def subscribe(ctx: Context) -> None:
        """Get the news"""
        ctx.start_flow(Reader)
        ctx.answer("You get the news now. /stop ends it.")

    @router.on(command("stop"), fsm_flow(Reader))
    async def unsubscribe(ctx: Context) -> None:
        """Get no more news"""
        ctx.clear_flow()
        ctx.answer("You get no more news.")

    @editor.on(command("send"))
    async def preview(ctx: Context) -> None:
        """Send news to all: /send We are back!"""
        if not ctx.args:
            ctx.answer("Say /send and your text.")
            return
        ctx.profile["draft"] = ctx.args
        ctx.answer(ctx.args, reply_markup=keyboard([[button("Send to all", data="send")]]))

    @editor.on(callback("send"))
    async def send(ctx: Context) -> None:
        text = ctx.profile.pop("draft", None)
        if text is None:
            ctx.answer_callback("This was sent already.")
            return
        number = f"news-{ctx.update_id}"
        await news.submit({"id": number, "text": text, "editor": ctx.key}, flow_id=number)
        ctx.edit(f"{text}\n\nOn its way.")

    @router.on(kind("message"))
    async def otherwise(ctx: Context) -> None:
        ctx.answer("You get the news. /stop ends it." if ctx.flow else "/start to get the news.")

    return router
