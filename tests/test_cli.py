from __future__ import annotations

import subprocess
import sys


def stepwell(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "stepwell", *arguments], capture_output=True, text=True, check=False)


def test_the_demo_plays_a_registration_and_shows_the_record_after_each_step() -> None:
    done = stepwell("demo")
    assert done.returncode == 0, done.stderr
    for line in (
        "What's your name?",
        "Got it, Alice! What's your email?",
        "Please confirm.",
        "Registered! Welcome, Alice!",
    ):
        assert f"bot   {line}" in done.stdout
    assert "registration / get_email   {'name': 'Alice'}" in done.stdout
    assert "no record" in done.stdout


def test_a_wrong_url_is_one_clear_line() -> None:
    done = stepwell("demo", "--storage", "nowhere://")
    assert done.returncode == 1
    assert done.stderr.startswith("stepwell: no storage is installed for 'nowhere'")
    assert "Traceback" not in done.stderr


def test_wrong_arguments_say_what_there_is() -> None:
    for arguments in ([], ["dance"], ["demo", "--speed"]):
        done = stepwell(*arguments)
        assert done.returncode == 2
        assert "usage: stepwell" in done.stderr


def test_the_version_is_told() -> None:
    assert stepwell("--version").stdout.startswith("stepwell 0.")
