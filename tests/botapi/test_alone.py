"""The local Bot API without the rest of Stepwell."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import stepwell.botapi
from stepwell.botapi.keyboards import DATA_LIMIT
from stepwell.botapi.updates import ON_REQUEST
from stepwell.fsm import update
from stepwell.fsm.forms import keyboards

SESSION = """
import asyncio, json, sys, urllib.request
from stepwell.botapi import BotAPI

async def main():
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        chat = api.chat(bot)
        await chat.send("/start")
        url = f"{api.url}/bot{bot.token}/getUpdates"
        answer = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
        print(json.loads(answer)["result"][0]["message"]["text"])

asyncio.run(main())
print(*{name.partition(".")[0] for name in sys.modules})
"""


def test_a_copy_of_the_package_runs_without_the_rest_of_stepwell_and_without_frameworks(tmp_path: Path) -> None:
    # An empty package of the same name: everything else of Stepwell is missing.
    (tmp_path / "stepwell").mkdir()
    (tmp_path / "stepwell" / "__init__.py").touch()
    shutil.copytree(Path(stepwell.botapi.__file__).parent, tmp_path / "stepwell" / "botapi")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SESSION}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, loaded = done.stdout.splitlines()
    assert said == "/start"
    assert "uvicorn" in loaded.split()
    assert not {"msgspec", "apsw", "aiogram", "telegram", "telebot", "pydantic"} & set(loaded.split())


def test_without_its_packages_the_server_says_how_to_install_them() -> None:
    code = """if True:
        import sys
        sys.modules["uvicorn"] = None
        from stepwell.botapi import World
        try:
            from stepwell.botapi import BotAPI
        except ImportError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'stepwell[botapi]'" in done.stdout


def test_the_library_and_the_local_bot_api_have_the_same_rules() -> None:
    assert (DATA_LIMIT, ON_REQUEST) == (keyboards.DATA_LIMIT, update.ON_REQUEST)
