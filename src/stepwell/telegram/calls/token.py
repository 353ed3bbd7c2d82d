"""The token of a bot: where it is found, and its form. No message contains it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from stepwell._secrets import quoted
from stepwell.errors import UsageError

__all__ = ["check_token", "find_token"]

_TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]+")
_LINE = re.compile(r"\s*(?:export\s+)?(BOT_TOKEN|BOT_TOKEN_FILE)\s*=\s*(.*?)\s*")


def find_token(folder: str | os.PathLike[str] = ".") -> str:
    """Return the token from ``BOT_TOKEN``, from the file that ``BOT_TOKEN_FILE`` names, or from ``.env`` in a folder.

    The environment takes precedence over ``.env``. Raises ``UsageError`` if there is no token, or if it is malformed.

    Example::

        token = find_token()
    """
    environment = {name: os.environ.get(name, "") for name in ("BOT_TOKEN", "BOT_TOKEN_FILE")}
    env_file = Path(folder, ".env")
    # A relative path in .env is relative to .env.
    for base, given, source in (("", environment, "the environment"), (folder, _read_env(env_file), str(env_file))):
        token, file = given.get("BOT_TOKEN", "").strip(), given.get("BOT_TOKEN_FILE", "").strip()
        if token:
            return check_token(token, f"BOT_TOKEN in {source}")
        if file:
            path = Path(base, file)
            return check_token(_read(path, f"BOT_TOKEN_FILE in {source}").strip(), str(path))
    raise UsageError(
        "no bot token was found; set BOT_TOKEN, or BOT_TOKEN_FILE to the path of a file with the token, "
        f"or write BOT_TOKEN=... into {quoted(str(env_file))}; @BotFather creates tokens"
    )


def check_token(token: object, source: str = "the token") -> str:
    """Return a token of the right form; otherwise raise ``UsageError`` without showing it."""
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise UsageError(
            f"{source} does not have the form of a bot token, 123456:ABC-DEF; copy the token from @BotFather again"
        )
    return token


def _read_env(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    found: dict[str, str] = {}
    for line in _read(path, ".env").splitlines():
        match = _LINE.fullmatch(line)
        if match:
            in_quotes = re.match(r"""(["'])(.*?)\1""", match[2])
            # Without quotes, a comment may follow.
            found[match[1]] = in_quotes[2] if in_quotes else re.sub(r"(^|\s)#.*", "", match[2])
    return found


def _read(path: Path, source: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"the file {quoted(str(path))} for the bot token ({source}) cannot be read: {why}") from None
