"""A bot for ``stepwell run`` that tells how many pictures an album has."""

from __future__ import annotations

from stepwell import Storage
from stepwell.fsm import FSM, Context, Router, album


def make_router(storage: Storage | str) -> Router:
    router = Router(FSM("my_bot", storage=storage, flows=[]))

    @router.on(album())
    async def pictures(ctx: Context) -> None:
        ctx.answer(" ".join(each["caption"] for each in ctx.album))

    return router
