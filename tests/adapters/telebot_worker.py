"""A telebot bot behind a webhook, in a process of its own, for tests that kill it.

Several workers share the port; the system spreads connections among them.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from telebot import TeleBot, apihelper, types

from stepwell.adapters.telebot import fsm_of, setup
from stepwell.fsm import FSM, Flow, state


class Walk(Flow, name="walk"):
    left = state(to=["right"])
    right = state(to=["left"])
    default_state = left


def make_bot(storage: str, token: str) -> TeleBot:
    """Return a bot that goes to the other state with each message, and keeps the texts."""
    # A webhook is answered when its update is handled.
    bot = TeleBot(token, threaded=False)
    setup(bot, FSM("walk_bot", storage=storage, flows=[Walk], lease=1.0))

    @bot.message_handler(fsm_in_flow=False)
    def begin(message: types.Message) -> None:
        ctx = fsm_of(message)
        ctx.start_flow(Walk)
        ctx.update_data(texts=[message.text])

    @bot.message_handler(fsm_flow=Walk)
    def step(message: types.Message) -> None:
        ctx = fsm_of(message)
        ctx.transition("right" if ctx.state == "left" else "left")
        ctx.update_data(texts=[*ctx.data["texts"], message.text])

    return bot


class Server(ThreadingHTTPServer):
    allow_reuse_port = True
    daemon_threads = True


def main(storage: str, api: str, token: str, port: str) -> None:
    apihelper.API_URL = f"{api}/bot{{0}}/{{1}}"
    bot = make_bot(storage, token)

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body: Any = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bot.process_new_updates([types.Update.de_json(body)])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    with Server(("127.0.0.1", int(port)), Hook) as server:
        print("listening", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
