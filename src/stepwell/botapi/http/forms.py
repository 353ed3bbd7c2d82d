"""Request bodies and webhook responses: JSON, form, multipart."""

from __future__ import annotations

from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl

from stepwell.botapi.errors import bad_request
from stepwell.botapi.http.packages import multipart, multipart_errors
from stepwell.botapi.params import Params, Upload, loads

__all__ = ["read_body"]


def read_body(content_type: str, body: bytes, query: dict[str, Any] | None = None) -> Params:
    """Return the parameters of a body; they override those of the query."""
    given: dict[str, Any] = dict(query or {})
    files: dict[str, Upload] = {}
    kind = content_type.partition(";")[0].strip().lower()
    if not body:
        return Params(given)
    if kind == "application/x-www-form-urlencoded":
        return Params(given | dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True)))
    if kind == "multipart/form-data":
        _read_parts(content_type, body, given, files)
        return Params(given, files)
    try:
        parsed = loads(body)
    except ValueError:
        raise bad_request("can't parse JSON object" if kind == "application/json" else "unsupported body") from None
    if not isinstance(parsed, dict):
        raise bad_request("object expected as JSON body")
    return Params({**given, **parsed})


def _read_parts(content_type: str, body: bytes, given: dict[str, Any], files: dict[str, Upload]) -> None:
    def on_field(field: Any) -> None:
        given[field.field_name.decode()] = (field.value or b"").decode(errors="replace")

    def on_file(file: Any) -> None:
        file.file_object.seek(0)
        name = (file.file_name or b"file").decode(errors="replace")
        files[file.field_name.decode()] = Upload(name, file.file_object.read())
        file.close()

    headers = {"Content-Type": content_type.encode(), "Content-Length": str(len(body)).encode()}
    try:
        multipart.parse_form(headers, BytesIO(body), on_field, on_file)
    except (multipart_errors.FormParserError, ValueError) as error:
        raise bad_request(f"can't parse the form ({error})") from None
