from __future__ import annotations

import asyncio
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples import registration
from stepwell.cli import main
from stepwell.cli.demo import bot, script
from stepwell.cli.storage_url import place_of
from tests.backends import Backend
from tests.constants import Constants
from tests.inboxes import inbox_emptied
from tests.servers.process import free_port

ROOT = Path(__file__).parent.parent
ANSWERS = [
    "What's your name?",
    "Got it, Alice! What's your email?",
    "Please confirm.",
    "Registered! Welcome, Alice!",
]


Command = Callable[..., subprocess.CompletedProcess[str]]


def stepwell(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stepwell", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **options)


@pytest.fixture
def called(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process, which is faster."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            code = main(arguments)
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return call


# Without a terminal


def test_the_demo_plays_a_registration_and_shows_the_record_after_each_step() -> None:
    done = stepwell("demo", cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    for line in ANSWERS:
        assert f"bot   {line}" in done.stdout
    assert "The bot is examples/registration.py" in done.stdout
    assert "registration / get_email   {'name': 'Alice'}" in done.stdout
    assert "no record" in done.stdout
    assert "All answers were as expected." in done.stdout


def test_a_bot_process_is_killed_halfway_and_another_continues() -> None:
    done = stepwell("demo")
    killed = re.search(r"kill -9 (\d+): the bot was killed. A new one starts as process (\d+)", done.stdout)
    assert killed is not None
    assert killed[1] != killed[2]
    for pid in killed.groups():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    before, after = done.stdout.split(killed[0])
    assert ANSWERS[1] in before
    assert ANSWERS[2] in after


async def test_the_script_runs_on_a_given_storage_and_leaves_no_records(shared_backend: Backend) -> None:
    url = shared_backend.place()
    done = await asyncio.to_thread(stepwell, "demo", "--storage", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert [entry async for entry in shared_backend.storage(url).scan("registration_bot")] == []


@pytest.mark.parametrize("url", ["memory://", "sqlite:///:memory:"])
def test_the_bot_is_not_killed_in_memory(url: str) -> None:
    done = stepwell("demo", "--storage", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "kill -9" not in done.stdout
    assert ANSWERS[3] in done.stdout


@pytest.mark.parametrize("url", ["memory://", None])
def test_a_wrong_answer_is_printed_and_sets_the_exit_code(
    url: str | None, constants: Constants, capsys: pytest.CaptureFixture[str]
) -> None:
    constants(demo_script=[("/register", "What is your name?"), *script.SCRIPT[1:]])
    assert script.play(url) == 1
    assert "An answer was not as expected." in capsys.readouterr().out


def test_a_closed_pipe_prints_no_traceback() -> None:
    command = f"{sys.executable} -m stepwell demo --storage memory:// | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


# Errors


def test_a_wrong_url_prints_one_clear_line(called: Command) -> None:
    done = called("demo", "--storage", "nowhere://")
    assert done.returncode == 2
    assert done.stderr.startswith("stepwell: no storage is installed for 'nowhere'")
    assert "Traceback" not in done.stderr


def test_wrong_arguments_print_the_commands(called: Command) -> None:
    for arguments in ([], ["dance"], ["demo", "--speed"]):
        done = called(*arguments)
        assert done.returncode == 2
        assert "see stepwell" in done.stderr


def test_version_prints_the_version() -> None:
    assert stepwell("--version").stdout.startswith("stepwell 0.")


def test_a_password_in_a_url_is_not_shown() -> None:
    assert place_of("redis://me:secret@example.com:6379/0") == "redis://example.com/0"
    assert place_of("sqlite:////var/lib/my%20bot.db") == "/var/lib/my bot.db"
    assert place_of(f"sqlite:///{Path.home()}/bot.db") == "~/bot.db"


def test_the_wheel_contains_the_bot_where_the_demo_looks_for_it() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    [(source, target)] = wheel["force-include"].items()
    assert (ROOT / source).samefile(registration.__file__)
    assert Path(bot.__file__).parent / "registration.py" == ROOT / "src" / target


def test_the_wheel_contains_every_file_of_the_package() -> None:
    # The builder leaves out the files that git ignores, and nothing else.
    package = ROOT / "src" / "stepwell"
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in str(path)]
    for part in ("cli/templates/bot/pyproject.toml.txt", "cli/templates/.gitignore.txt",
                 "inspector/page/index.html", "playground/page/index.html", "web/page/base.css",
                 "storage/redis/batch.lua", "py.typed"):  # fmt: skip
        assert package / part in files
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout of the repository")
    names = "\n".join(map(str, files))
    ignored = subprocess.run([git, "check-ignore", "--stdin"], input=names, cwd=ROOT, capture_output=True, text=True)
    assert (ignored.returncode, ignored.stdout) == (1, "")


# In a terminal


class Terminal:
    """The demo on its own pseudo terminal."""

    def __init__(self, home: Path, *arguments: str, command: str = "demo", path: Path | None = None) -> None:
        import pty

        self.master, slave = pty.openpty()
        env = {**os.environ, "XDG_STATE_HOME": str(home), "COLUMNS": "200", "TERM": "xterm"}
        env.pop("STEPWELL_STORAGE", None)
        if path is not None:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), env.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stepwell", command, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def expect(self, text: str) -> str:
        """Wait until the terminal shows this text, and return the output before it."""
        until = time.monotonic() + 60
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise AssertionError(f"{text!r} never came; seen: {self.seen!r}")
            try:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
            except OSError:  # Linux raises this when the process has ended
                raise AssertionError(f"{text!r} never came; seen: {self.seen!r}") from None
        before, self.seen = self.seen.split(text, 1)
        return before

    def type(self, text: str) -> None:
        os.write(self.master, text.encode(errors="surrogateescape"))

    def interrupt(self) -> None:
        """Press Ctrl-C until the process ends: a signal just before the read is noticed only at the next one."""
        for _ in range(20):
            os.kill(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(0.5)
                return
            except subprocess.TimeoutExpired:
                pass

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are for Unix")
def test_in_a_terminal_the_conversation_continues_after_kill_9(tmp_path: Path, terminals: list[Terminal]) -> None:
    terminals.append(first := Terminal(tmp_path))
    first.expect(f"stored in {tmp_path}/stepwell/demo.db")
    first.expect("http://127.0.0.1:")
    first.expect("/?token=")
    first.expect("Open this link: the chat is on the left")
    first.expect(f"kill this process (kill -9 {first.process.pid}) and start it again: the conversation continues")
    first.expect("Or chat here")
    first.expect("you   ")
    first.type("/register\n")
    first.expect("bot   What's your name?")
    first.expect("registration / get_name")
    first.type("\nAlice\n")
    first.expect("bot   Got it, Alice! What's your email?")
    first.expect("you   ")
    # A kill before that repeats the answer, which is not what this test is about.
    asyncio.run(inbox_emptied(f"sqlite:///{tmp_path}/stepwell/demo.db"))
    os.kill(first.process.pid, signal.SIGKILL)

    terminals.append(second := Terminal(tmp_path))
    second.expect("You have an open conversation:")
    second.expect("registration / get_email   {'name': 'Alice'}")
    second.type("alice@example.com\nyes\n")
    second.expect("bot   Registered! Welcome, Alice!")
    second.expect("no record")
    second.expect("you   ")
    second.type("\x04")
    second.expect("Bye.")
    assert second.process.wait(60) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are for Unix")
@pytest.mark.parametrize("page", [True, False], ids=["with the page", "without the page"])
def test_kill_9_while_the_demo_waits_for_input_does_not_change_the_terminal(
    tmp_path: Path, terminals: list[Terminal], page: bool
) -> None:
    import termios

    if not page:
        (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('no uvicorn')")
    terminals.append(terminal := Terminal(tmp_path, path=None if page else tmp_path))
    before = termios.tcgetattr(terminal.master)
    assert before[3] & termios.ECHO
    assert before[3] & termios.ICANON
    terminal.expect("you   ")
    terminal.type("/register\n")
    terminal.expect("bot   What's your name?")
    terminal.expect("you   ")
    os.kill(terminal.process.pid, signal.SIGKILL)
    terminal.process.wait(60)
    assert termios.tcgetattr(terminal.master) == before


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are for Unix")
def test_ctrl_c_exits_cleanly_and_an_error_does_not_exit(tmp_path: Path, terminals: list[Terminal]) -> None:
    terminals.append(terminal := Terminal(tmp_path, "--storage", "memory://"))
    terminal.expect("you   ")
    terminal.type("/register\n")
    terminal.expect("you   ")
    terminal.type("\udcff\n")
    terminal.expect("error ")
    terminal.expect("you   ")
    terminal.interrupt()
    terminal.expect("Bye.")
    assert terminal.process.wait(60) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are for Unix")
def test_the_script_can_be_run_in_a_terminal(tmp_path: Path, terminals: list[Terminal]) -> None:
    terminals.append(terminal := Terminal(tmp_path, "--script", "--storage", "memory://"))
    terminal.expect("All answers were as expected.")
    assert terminal.process.wait(60) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are for Unix")
def test_a_folder_that_cannot_be_created_prints_one_clear_line(tmp_path: Path, terminals: list[Terminal]) -> None:
    (tmp_path / "file").touch()
    terminals.append(terminal := Terminal(tmp_path / "file"))
    terminal.expect("stepwell: ")
    terminal.expect("choose another file with --storage sqlite:///demo.db")
    assert terminal.process.wait(60) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are for Unix")
def test_the_link_of_the_demo_opens_the_page_and_link_prints_another(tmp_path: Path, terminals: list[Terminal]) -> None:
    terminals.append(terminal := Terminal(tmp_path, "--storage", "memory://"))
    terminal.expect("  http://")
    address = "http://" + terminal.expect("\r\n")
    with httpx.Client() as browser:
        assert browser.get(address.partition("?")[0]).status_code == 401
        assert browser.get(address).status_code == 200
        assert "playground</span>" in browser.get(address.partition("?")[0]).text
    terminal.expect("you   ")
    terminal.type("/link\n")
    terminal.expect("  http://")
    with httpx.Client() as other:
        assert other.get(address).status_code == 401
        assert other.get("http://" + terminal.expect("\r\n")).status_code == 200


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are for Unix")
def test_without_the_extra_the_demo_chats_in_the_terminal_and_says_how_to_get_the_page(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('no uvicorn')")
    terminals.append(terminal := Terminal(tmp_path, path=tmp_path))
    terminal.expect("The page in the browser is not available:")
    terminal.expect("stepwell[playground]")
    terminal.expect("you   ")
    terminal.type("/register\n")
    terminal.expect("bot   What's your name?")


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are for Unix")
def test_play_prints_links_and_the_output_of_the_bot(tmp_path: Path, terminals: list[Terminal]) -> None:
    bot_file = tmp_path / "my_bot.py"
    bot_file.write_text("import os, time; print('storage:', os.environ['STEPWELL_STORAGE']); time.sleep(60)")
    terminals.append(terminal := Terminal(tmp_path, str(bot_file), "--port", str(free_port()), command="play"))
    terminal.expect("it restarts when its file changes")
    terminal.expect("  http://")
    link = "http://" + terminal.expect("\r\n")
    # Bots of the same name in different folders have different files.
    named = sha256(str(bot_file.resolve()).encode()).hexdigest()[:8]
    terminal.expect(f"storage: sqlite:///{tmp_path}/stepwell/play-my_bot-{named}.db")
    assert httpx.get(link).status_code == 200
    terminal.expect("The link was used. This one opens another browser:")
    terminal.expect("  http://")
    assert httpx.get("http://" + terminal.expect("\r\n")).status_code == 200
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.expect("Bye.")
    assert terminal.process.wait(60) == 0


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlit:///x", "stepwell: no storage is installed for 'sqlit'"),
        ("sqlite:///nodir/x.db", "stepwell: the folder "),
        ("sqlite://x", "stepwell: this is not the URL of an SQLite file"),
    ],
)
@pytest.mark.parametrize(
    "command", [["demo"], ["play", str(ROOT / "examples" / "registration.py")]], ids=lambda it: it[0]
)
def test_an_invalid_storage_prints_one_clear_line_before_the_bot_starts(
    command: list[str], url: str, said: str, tmp_path: Path, called: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = called(*command, "--storage", url)
    assert (done.returncode, done.stdout) == (1 if "nodir" in url else 2, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are for Unix")
def test_an_invalid_storage_prints_one_clear_line_in_a_terminal(tmp_path: Path, terminals: list[Terminal]) -> None:
    terminals.append(terminal := Terminal(tmp_path, "--storage", f"sqlite:///{tmp_path}/nodir/x.db"))
    assert terminal.expect("stepwell: the folder ") == ""
    terminal.expect("create it first")
    assert terminal.process.wait(60) == 1


@pytest.mark.parametrize("port", ["99999", "-1", "http", "²"])
@pytest.mark.parametrize("command", [["demo"], ["play", "bot.py"]], ids=lambda it: it[0])
def test_an_invalid_port_is_refused_by_the_parser(command: list[str], port: str, called: Command) -> None:
    done = called(*command, f"--port={port}")
    assert done.returncode == 2
    assert f"a port must be a number from 0 to 65535, got {port!r}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_help_of_a_command_is_a_sentence(called: Command) -> None:
    assert "\nRun a bot without Telegram, chat" in called("play", "--help").stdout
    assert "\nChat with a registration bot" in called("demo", "--help").stdout


def test_play_prints_clear_errors(called: Command) -> None:
    done = called("play", "nowhere.py", "--storage", "memory://")
    assert (done.returncode, done.stderr) == (1, "stepwell: the file 'nowhere.py' does not exist\n")
    done = called(
        "play",
        str(ROOT / "examples" / "registration.py"),
        "--storage",
        "memory://",
        "--port",
        "1",
        "--host",
        "192.0.2.1",
    )
    assert done.returncode == 1
    assert "stepwell: cannot listen on 192.0.2.1 port 1" in done.stderr
    assert "Traceback" not in done.stderr
