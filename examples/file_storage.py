"""A storage over a directory of files: three small methods make a complete storage.

Safe within one process. For more, use ``sqlite:///bot.db``.

``from_url`` is for ``open_storage("files:///state")``, which finds the class by these lines in the pyproject.toml of
the package that it is in::

    [project.entry-points."stepwell.storage"]
    files = "file_storage:FileStorage"
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from stepwell import KeyValueStorage, State
from stepwell.errors import InvalidOption
from stepwell.record import Address


class FileStorage(KeyValueStorage):
    """One file per record."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        self.folder = folder

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """``files:///state`` is relative to where the program runs, ``files:////var/lib/state`` is absolute."""
        parts = urlsplit(url)
        folder = unquote(parts.path)[1:]
        if parts.netloc or parts.query or not folder:
            raise InvalidOption(f"{url!r} is no URL of a folder; write files:///state or files:////var/lib/state")
        return cls(Path(folder), **options)

    async def read(self, address: Address) -> str | None:
        try:
            # Damaged bytes become text that fails the checksum.
            return await asyncio.to_thread(self._path(address).read_text, encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return None

    async def write(self, address: Address, text: str) -> None:
        await asyncio.to_thread(_replace, self._path(address), text)

    async def delete(self, address: Address) -> None:
        await asyncio.to_thread(self._path(address).unlink, missing_ok=True)

    def _path(self, address: Address) -> Path:
        # Keys may be longer than a file name, or differ only in case.
        return self.folder / f"{sha256(address.text.encode()).hexdigest()}.json"


def _replace(path: Path, text: str) -> None:
    """Write atomically: a reader sees the old text or the new one, even after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            Path(file.name).unlink()
            raise
    Path(file.name).replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with FileStorage(Path(folder)) as storage:
            await storage.set_state("my_bot", (42, 42), State("registration", "get_name"))
            await storage.update_data("my_bot", (42, 42), {"name": "Alice"})
        async with FileStorage(Path(folder)) as storage:
            print(await storage.get_state("my_bot", (42, 42)))


if __name__ == "__main__":
    asyncio.run(main())
