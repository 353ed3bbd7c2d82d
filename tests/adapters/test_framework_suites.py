"""The tests of python-telegram-bot and of the OpenAI Agents SDK, from their source distributions, with our classes."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.adapters.oldest import ROOT
from tests.backends import Backend

pytestmark = [
    pytest.mark.every_backend,
    pytest.mark.skipif(os.environ.get("STEPWELL_DOSE") != "large", reason="set STEPWELL_DOSE=large to run it"),
]

#: What the tests of python-telegram-bot are written for.
PTB_NEEDS = (
    "pytest==9.0.3",
    "pytest-asyncio==0.21.2",
    "flaky>=3.8",
    "beautifulsoup4",
    "pytz",
    "APScheduler<3.12",
    "cachetools",
)
#: Tests of a job queue, which ours does not need, and of where and when a message is logged and how a task is named.
NOT_OURS = (
    "test_no_running_job_queue_warning",
    "test_schedule_job_exception",
    "test_conversation_timeout_application_handler_stop",
    "test_timeout_non_block",
    "test_non_blocking_exception_or_none[exception]",
    "test_non_blocking_entry_point_exception",
    # The slots of a class, and the time at which a state is stored: ours is stored earlier.
    "test_slot_behaviour",
    "test_non_blocking_conversations_raises_Exception",
)
#: Tests of the connections, locks and tables of the SDK's own class.
OF_SQLITE = "connections or corrupt or file_lock or failed_ or rollback or quarantined or post_commit or closed_rejects"


def sources(distribution: str, needs: tuple[str, ...]) -> tuple[Path, Path]:
    """Fetch the sources of an installed release once; return their folder and that of the packages its tests need."""
    folder = Path(sys.prefix) / "suites" / f"{distribution}-{version(distribution)}"
    if not folder.exists():
        pip, fetched = [sys.executable, "-m", "pip", "--quiet"], folder.with_name(f"{folder.name}.part")
        release = f"{distribution}=={version(distribution)}"
        subprocess.run([*pip, "download", "--no-binary", ":all:", "--no-deps", "-d", str(fetched), release], check=True)
        subprocess.run([*pip, "install", "--target", str(fetched / "needs"), *needs], check=True)
        (archive,) = fetched.glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(fetched / "sources", filter="data")
        fetched.rename(folder)
    (found,) = (folder / "sources").iterdir()
    return found, folder / "needs"


def run(plugin: str, url: str, where: tuple[Path, Path], *options: str, suite: str = "") -> None:
    """Run tests with a plugin of this folder, and require that all pass."""
    folder, needs = where
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(needs), str(folder), str(ROOT / "tests" / "adapters"), str(ROOT / "src")]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "STEPWELL_SUITE_URL": url,
        "STEPWELL_SUITE": suite,
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "pytest_asyncio.plugin",
        "-p",
        plugin,
        "-p",
        "no:cacheprovider",
    ]
    # Some tests wait a short time for a write. On a busy machine it takes longer, and they are run once more.
    for pause in ("0.2", "1"):
        done = subprocess.run(
            [*command, "-p", plugin, *options],
            env={**environment, "STEPWELL_SUITE_PAUSE": pause},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    print(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("suite", ["persistence", "conversation"])
def test_the_tests_of_python_telegram_bot_pass(backend: Backend, suite: str) -> None:
    tests = {
        "persistence": "tests/ext/test_basepersistence.py::TestBasePersistence",
        "conversation": "tests/ext/test_conversationhandler.py::TestConversationHandler",
    }[suite]
    where = sources("python-telegram-bot", PTB_NEEDS)
    deselected = [f"--deselect={tests}::{name}" for name in NOT_OURS]
    run("ptb_suite", backend.place(), where, "-p", "flaky.flaky_pytest_plugin", tests, *deselected, suite=suite)


def test_the_session_tests_of_the_openai_agents_sdk_pass(backend: Backend) -> None:
    tests = ("tests/memory/test_session.py", "tests/memory/test_session_limit.py", "-k", f"not ({OF_SQLITE})")
    run("agents_suite", backend.place(), sources("openai-agents", ("pytest-mock", "inline-snapshot")), *tests)
