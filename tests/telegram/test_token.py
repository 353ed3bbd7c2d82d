"""Finding the token of a bot."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.errors import UsageError
from stepwell.telegram import find_token


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOT_TOKEN", raising=False)
    monkeypatch.delenv("BOT_TOKEN_FILE", raising=False)


def test_the_environment_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("BOT_TOKEN=1:file\n")
    (tmp_path / "token").write_text("1:named\n")
    assert find_token(tmp_path) == "1:file"
    monkeypatch.setenv("BOT_TOKEN_FILE", str(tmp_path / "token"))
    assert find_token(tmp_path) == "1:named"
    monkeypatch.setenv("BOT_TOKEN", " 1:variable ")
    assert find_token(str(tmp_path)) == "1:variable"
    monkeypatch.setenv("BOT_TOKEN", "")
    assert find_token(tmp_path) == "1:named"


@pytest.mark.parametrize(
    "line",
    [
        "BOT_TOKEN=1:x",
        'export BOT_TOKEN = "1:x"  # my bot',
        "  BOT_TOKEN='1:x'",
        "BOT_TOKEN=1:x # my bot",
        "BOT_TOKEN_FILE=token",
        "\ufeffBOT_TOKEN=1:x",
    ],
)
def test_an_env_file(tmp_path: Path, line: str) -> None:
    (tmp_path / "token").write_text("1:x")
    (tmp_path / ".env").write_text(f"{line}\n#BOT_TOKEN=1:old\nOTHER=2\nMY_BOT_TOKEN=3:z\nnot a line\n", "utf-8")
    assert find_token(tmp_path) == "1:x"


def test_no_token_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no bot token was found; set BOT_TOKEN, or .*\.env'; @BotFather"):
        find_token(tmp_path)


@pytest.mark.parametrize("line", ["BOT_TOKEN=s3cret", "BOT_TOKEN_FILE=named", "BOT_TOKEN_FILE=missing"])
def test_a_token_of_another_form_names_its_source_and_is_not_shown(tmp_path: Path, line: str) -> None:
    (tmp_path / "named").write_text("s3cret")
    (tmp_path / ".env").write_text(line)
    with pytest.raises(UsageError) as raised:
        find_token(tmp_path)
    message = str(raised.value)
    assert str(tmp_path) in message
    assert "s3cret" not in message
    assert ("cannot be read: No such file" in message) == ("missing" in line)


def test_a_file_that_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe\x00")
    monkeypatch.setenv("BOT_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(UsageError, match="it is not UTF-8 text"):
        find_token(tmp_path)
