"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import asyncpg
import redis

from tests.servers import postgres
from tests.servers.redis import the_cluster, the_server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "pytest.md"

FIXTURES = """
import httpx
import pytest

from stepwell.fsm import FSM, Flow, Router, state
from stepwell.testing import Clock
from stepwell.turns import Turns

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("run", [1, 2])
async def test_each_test_has_an_empty_store(stepwell_storage, run):
    assert await stepwell_storage.get_data("bot", 1) is None
    await stepwell_storage.update_data("bot", 1, {"run": run})
    assert await stepwell_storage.get_data("bot", 1) == {"run": run}


async def test_turns_are_killed_and_go_on(stepwell_chat, stepwell_storage, stepwell_clock):
    def make(storage):
        turns = Turns("bot", storage=storage)

        @turns.handler
        async def answer(turn):
            turn.answer(f"{turn.text} {turn.attempt}")

        return turns

    chat = stepwell_chat(make, storage=stepwell_storage)
    assert await chat.ask("one") == ["one 1"]
    chat.kill_next("before end")
    assert await chat.ask("two") == []
    assert await chat.advance(31) == ["two 2"]


async def test_the_storage_uses_the_clock(stepwell_storage, stepwell_clock):
    assert stepwell_storage.clock is stepwell_clock
    await stepwell_storage.init("bot", ttl=10)
    await stepwell_storage.update_data("bot", 1, {"a": 1})
    stepwell_clock.advance(11)
    assert await stepwell_storage.get_data("bot", 1) is None


async def remind(ctx):
    ctx.answer("Still there?")


class Asking(Flow, name="asking"):
    asked = state(timeout=60, on_timeout=remind)
    default_state = asked


def make_router(storage):
    router = Router(FSM("asking", storage=storage, flows=[Asking]))

    @router.on()
    async def ask(ctx):
        ctx.start_flow(Asking)

    return router


async def test_a_chat_on_a_url_uses_the_clock(stepwell_chat, stepwell_clock, tmp_path):
    url = f"sqlite:///{tmp_path}/chat.db"
    for options in ({}, {"clock": stepwell_clock}):
        chat = stepwell_chat(make_router, storage=url, **options)
        await chat.send("Hello")
        assert await chat.advance(61) == ["Still there?"]
    mine = Clock(5.0)
    chat = stepwell_chat(make_router, storage=f"{url}2", clock=mine)
    await chat.send("Hello")
    assert await chat.advance(61) == ["Still there?"]
    assert mine.now == 66


async def test_the_bot_api(bot_api):
    bot = bot_api.bot("my_bot")
    async with httpx.AsyncClient(trust_env=False) as http:
        me = (await http.get(f"{bot_api.url}/bot{bot.token}/getMe")).json()
    assert me["result"]["username"] == "my_bot"
"""


def run_pytest(folder: Path, *options: str) -> str:
    """Run pytest as a user would, without the settings of this repository."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options, str(folder)]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_each_test_runs_on_every_storage_in_a_store_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_fixtures.py").write_text(FIXTURES)
    urls = ["memory://", "sqlite://", the_server().url(), the_cluster().url(), postgres.shared().url()]
    shown = run_pytest(tmp_path, *(f"--stepwell-storage={url}" for url in urls))
    assert "22 passed" in shown
    for scheme in ("memory", "sqlite", "redis", "redis+cluster", "postgresql"):
        assert f"test_each_test_has_an_empty_store[{scheme}-1]" in shown

    assert redis.Redis(port=the_server().port).keys("pytest_*") == []
    assert redis.RedisCluster(host="127.0.0.1", port=the_cluster().nodes[0].port).keys("pytest_*") == []
    connection = await asyncpg.connect(postgres.shared().url())
    try:
        assert await connection.fetch("select from pg_namespace where nspname like 'pytest@_%' escape '@'") == []
    finally:
        await connection.close()


def test_the_files_of_the_page_run_and_nothing_is_imported_until_a_fixture_is_used(tmp_path: Path) -> None:
    counter, on_a_file = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_bot.py").write_text(counter)
    (tmp_path / "test_file.py").write_text(on_a_file)
    (tmp_path / "test_0.py").write_text("import sys\n\ndef test_before():\n    assert 'stepwell' not in sys.modules\n")
    # Collecting test_bot.py imports Stepwell, so the first file runs alone.
    assert "1 passed" in run_pytest(tmp_path, "--ignore-glob=*test_[bf]*")
    (tmp_path / "test_0.py").unlink()
    urls = ("--stepwell-storage=memory://", "--stepwell-storage=sqlite://")
    assert "3 passed" in run_pytest(tmp_path, "-o", "asyncio_mode=auto", *urls)


def test_the_urls_can_be_settings_and_anyio_runs_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nstepwell_storage =\n    memory://\n    sqlite://\n")
    (tmp_path / "test_any.py").write_text(
        "import pytest\n\n@pytest.mark.anyio\nasync def test_any(anyio_backend_name, stepwell_storage):\n"
        "    await stepwell_storage.update_data('bot', 1, {})\n"
        "\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    assert "2 passed" in run_pytest(tmp_path, "-p", "no:asyncio")
