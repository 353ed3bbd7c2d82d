"""A program that unpickles the files of python-telegram-bot's PicklePersistence and prints their records as JSON.

``python -m stepwell.adapters.imports.unpickle FILE [CODE ...]`` prints one line for each record: its source, the end of
its namespace, its key and its fields; or its source and the reason why it cannot be stored. CODE are files and modules
of the bot, which are imported first. The program does nothing else, because a pickle can run any code.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from stepwell import Limits
from stepwell.adapters.ptb.data.entries import BOT, CHAT, USER
from stepwell.adapters.ptb.data.fields import pack
from stepwell.adapters.ptb.data.keyboards import KEYBOARD
from stepwell.adapters.ptb.states import field_of, home_of, key_text, pack_state
from stepwell.botfile import import_code
from stepwell.engine import encode_value, quoted
from stepwell.errors import StepwellError, UsageError

__all__ = ["KEYBOARDS", "PARTS"]

#: The parts of a persistence, each in a file of its own if ``single_file=False``.
PARTS = ("user_data", "chat_data", "bot_data", "callback_data", "conversations")
#: The end of the namespace with callback data.
KEYBOARDS = ":keyboards"


class _Unpickler(pickle.Unpickler):
    """Leaves the bot out of Telegram's objects, and finds the classes of the file that was started as the bot."""

    def __init__(self, file: BinaryIO, code: Mapping[str, ModuleType]) -> None:
        super().__init__(file)
        self._code = code

    def persistent_load(self, pid: Any) -> None:
        return None

    def find_class(self, module: str, name: str) -> Any:
        if module != "__main__":
            return super().find_class(module, name)
        # This program is __main__ here; when the pickle was written, the bot was.
        for each in self._code.values():
            try:
                return super().find_class(each.__name__, name)
            except AttributeError:
                continue
        if self._code:
            raise UsageError(
                f"the class {quoted(name)} of the file that was started as the bot is not in {', '.join(self._code)}; "
                "pass that file with --import (imports=)"
            )
        raise UsageError(
            f"it has the class {quoted(name)} of the file that was started as the bot; pass that file: "
            "--import bot.py (imports=['bot.py'])"
        )


def _load(path: Path, code: Mapping[str, ModuleType]) -> Any:
    with path.open("rb") as file:
        return _Unpickler(file, code).load()


def _parts(path: Path, code: Mapping[str, ModuleType]) -> Mapping[str, Any]:
    if path.exists():
        found = _load(path, code)
        if not isinstance(found, dict) or not {"user_data", "conversations"} <= set(found):
            raise TypeError("it is not a file of PicklePersistence")
        return found
    files = {part: Path(f"{path}_{part}") for part in PARTS}
    return {part: _load(file, code) for part, file in files.items() if file.exists()}


def _records(parts: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, dict[Any, Any]]]:
    """Yield the source, the end of the namespace, the key and the fields of each record."""
    records: dict[Any, dict[Any, Any]] = {}
    for kind in (USER, CHAT):
        for key, data in (parts.get(kind) or {}).items():
            records.setdefault(key, {}).update(pack(kind, data))
    for name, states in (parts.get("conversations") or {}).items():
        for key, state in states.items():
            if state is not None:
                fields = records.setdefault(home_of(key), {})
                fields.setdefault(field_of(name), {})[key_text(key)] = pack_state(state)
    if parts.get("bot_data"):
        yield "bot_data", "", BOT, pack(BOT, parts["bot_data"])
    for key, fields in records.items():
        if fields not in ({USER: "dict"}, {CHAT: "dict"}, {USER: "dict", CHAT: "dict"}):
            yield str(key), "", key, fields
    keyboards, queries = parts.get("callback_data") or ([], {})
    found: dict[str, dict[str, Any]] = {
        uuid: {"used": used, "buttons": buttons, "queries": set()} for uuid, used, buttons in keyboards
    }
    for query, uuid in queries.items():
        found.setdefault(uuid, {"queries": set()})["queries"].add(query)
    for uuid, keyboard in found.items():
        yield f"callback_data[{uuid}]", KEYBOARDS, uuid, pack(KEYBOARD, keyboard)


def _main(path: str, given: Sequence[str]) -> int:
    # Code of the bot and of the pickle may print.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    limits = Limits()
    try:
        parts = _parts(Path(path), {each: import_code(each) for each in given})
    except Exception as error:  # noqa: BLE001 - a pickle can raise anything
        text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        out.write(encode_value({"error": text}, limits) + b"\n")
        out.close()
        return 1
    for source, end, key, fields in _records(parts):
        try:
            line = encode_value([source, end, key, fields], limits)
        except StepwellError as error:
            line = encode_value([source, str(error)], limits)
        out.write(line + b"\n")
    out.close()
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], sys.argv[2:]))
