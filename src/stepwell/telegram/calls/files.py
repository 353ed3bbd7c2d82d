"""Files in calls, and the parameters of a call as the body of a request."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stepwell.codec import record_type
from stepwell.codec.json import to_json
from stepwell.errors import InvalidOption
from stepwell.options import check_instance

__all__ = ["InputFile", "Payload", "pack", "read_content"]


@record_type(name="stepwell.InputFile")
@dataclass(frozen=True, slots=True)
class InputFile:
    """A file for a parameter such as ``photo`` or ``media``::

        InputFile("cat.jpg")
        InputFile(content=report, filename="report.pdf")
        InputFile(file_id=message["document"]["file_id"])

    A path is read when the call is sent. ``file_id`` names a file that Telegram has already; it may be a URL.
    """

    path: str | os.PathLike[str] | None = None
    content: bytes | None = field(default=None, repr=False, kw_only=True)
    file_id: str | None = field(default=None, kw_only=True)
    #: The name that users see; by default the name in the path.
    filename: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.path is not None:
            # A path object cannot be stored with the calls of an update.
            object.__setattr__(self, "path", os.fspath(self.path))
        given = [self.path, self.content, self.file_id]
        if sum(value is not None for value in given) != 1:
            raise InvalidOption(
                "InputFile takes one of these: InputFile(path), InputFile(content=bytes) or InputFile(file_id=...)"
            )
        check_instance(
            self.path,
            str,
            "InputFile(path): the path must be text; pass bytes as InputFile(content=...)",
            optional=True,
        )
        check_instance(self.content, bytes, "InputFile(content=...): must be bytes, got {type}", optional=True)

    @property
    def name(self) -> str:
        """The file name for the upload."""
        return self.filename or (Path(self.path).name if self.path is not None else "file")


class Payload(NamedTuple):
    """The parameters of a call: JSON if there is nothing to upload, otherwise fields and files of a form."""

    json: bytes
    fields: dict[str, str]
    files: dict[str, InputFile]


def pack(method: str, params: dict[str, Any]) -> Payload:
    """Return the payload of a call. Parameters that are ``None`` are left out.

    Raises ``InvalidOption`` for a value that is neither JSON nor an ``InputFile``.
    """
    files: dict[str, InputFile] = {}

    def attach(value: object) -> str:
        if not isinstance(value, InputFile):
            raise InvalidOption(
                f"{method}: a value of type {type(value).__name__} cannot be sent; pass plain JSON values, "
                "and files as InputFile(...)"
            )
        if value.file_id is not None:
            return value.file_id
        name = f"file{len(files)}"
        files[name] = value
        return f"attach://{name}"

    given = {name: value for name, value in params.items() if value is not None}
    if _FLAT.issuperset(map(type, given.values())):
        # Most calls. The other way takes five times as long.
        try:
            return Payload(to_json(given), {}, {})
        except (UnicodeEncodeError, OverflowError):
            pass
    try:
        body = json.dumps(given, default=attach, allow_nan=False)
        if not files:
            return Payload(body.encode(), {}, {})
        files.clear()
        uploads = {name: value for name, value in given.items() if _is_upload(value)}
        fields = {
            name: value if isinstance(value, str) else json.dumps(value, default=attach, allow_nan=False)
            for name, value in given.items()
            if name not in uploads and not isinstance(value, InputFile)
        }
        for value in fields.values():
            # A form is sent in UTF-8, which has no lone surrogates. UnicodeEncodeError is a ValueError.
            value.encode()
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidOption):
            raise
        raise InvalidOption(f"{method}: the parameters cannot be sent as JSON: {error}") from None
    ids = {name: value.file_id for name, value in given.items() if isinstance(value, InputFile) and value.file_id}
    return Payload(b"", {**fields, **ids}, {**files, **uploads})


#: Types that both encoders write in the same way.
_FLAT = frozenset({str, int, bool})


async def read_content(file: InputFile) -> bytes:
    """Return the content of a file; a path is read in a thread. Raises ``InvalidOption``."""
    if file.content is not None:
        return file.content
    try:
        return await asyncio.to_thread(Path(str(file.path)).read_bytes)
    except OSError as error:
        raise InvalidOption(f"the file {file.path} cannot be read: {error.strerror or error}") from error


def _is_upload(value: object) -> bool:
    return isinstance(value, InputFile) and value.file_id is None
