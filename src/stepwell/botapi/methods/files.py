"""Uploaded files. The newest are kept; their content is not inspected."""

from __future__ import annotations

import mimetypes
import secrets
from pathlib import PurePath
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.objects import StoredFile
from stepwell.botapi.params import Params, Upload
from stepwell.botapi.world import World

__all__ = ["METHODS", "add_profile_photo", "keep_document", "keep_photo", "keep_picture", "take_file"]

#: The most files that are kept.
MAX_FILES = 100
_PHOTO_SIZE = {"width": 1, "height": 1}


def take_file(call: Call, kind: str, params: Params, name: str) -> StoredFile:
    """Return a file that is uploaded, attached, named by its id, or named by a URL."""
    upload = _upload(call, params, name)
    if upload is not None:
        return _keep(call.world, kind, upload)
    value = params.text(name)
    stored = call.world.files.get(value)
    if stored is not None:
        if (stored.kind == "photo") != (kind == "photo") or stored.kind == "thumbnail":
            raise bad_request(f"can't use file of type {stored.kind.title()} as {kind.title()}")
        return stored
    if value.startswith(("http://", "https://")):
        # Not downloaded: this server makes no requests to the web.
        return _store(call.world, kind, value.rpartition("/")[2], b"")
    if not value or value.startswith("attach://"):
        raise bad_request(f"there is no {kind.replace('_', ' ')} in the request")
    raise bad_request("wrong file identifier/HTTP URL specified")


def keep_photo(call: Call, params: Params, *names: str) -> dict[str, Any] | None:
    """Return the PhotoSize object of an uploaded thumbnail; ``None`` if there is none."""
    upload = next((found for name in names if (found := _upload(call, params, name))), None)
    if upload is None:
        return None
    file = _keep(call.world, "thumbnail", upload)
    return {**file.base, **_PHOTO_SIZE}


def _upload(call: Call, params: Params, name: str) -> Upload | None:
    value = params.text(name)
    if value.startswith("attach://"):
        return call.params.files.get(value.removeprefix("attach://"))
    # Only a parameter of the call itself can be a part of its form.
    return None if value or params is not call.params else call.params.files.get(name)


def _keep(world: World, kind: str, upload: Upload) -> StoredFile:
    if not upload.content:
        raise bad_request("file must be non-empty")
    return _store(world, kind, upload.name, upload.content)


def _store(world: World, kind: str, name: str, content: bytes) -> StoredFile:
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    file = StoredFile(secrets.token_urlsafe(12), kind, name, media_type, content, {})
    world.files[file.id] = file
    while len(world.files) > MAX_FILES:
        del world.files[next(iter(world.files))]
    return file


def get_file(call: Call) -> dict[str, Any]:
    file = call.world.files.get(call.params.text("file_id"))
    if file is None:
        raise bad_request("invalid file_id")
    return {"file_size": 0, **file.base, "file_path": f"{file.kind}/{file.id}{PurePath(file.name).suffix}"}


def get_profile_photos(call: Call) -> dict[str, Any]:
    photos = call.world.photos.get(call.user_id(), [])
    offset, limit = (max(call.params.number(name, default), 0) for name, default in (("offset", 0), ("limit", 100)))
    return {"total_count": len(photos), "photos": photos[offset : offset + limit]}


def add_profile_photo(world: World, user_id: int, content: bytes) -> None:
    """Add a profile photo of a user, which becomes the current one."""
    world.photos.setdefault(user_id, []).insert(0, [keep_picture(world, content)])


def keep_picture(world: World, content: bytes) -> dict[str, Any]:
    """Keep a picture, and return its PhotoSize object."""
    file = _store(world, "photo", "photo.jpg", content)
    file.json = {**file.base, **_PHOTO_SIZE}
    return file.json


def keep_document(world: World, name: str, content: bytes) -> dict[str, Any]:
    """Keep a file that is sent as a file, and return its Document object."""
    file = _store(world, "document", name, content)
    file.json = {**file.base, "file_name": name, "mime_type": file.media_type}
    return file.json


METHODS: dict[str, Method] = {"getFile": get_file, "getUserProfilePhotos": get_profile_photos}
