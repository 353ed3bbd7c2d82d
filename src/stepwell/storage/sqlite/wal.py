"""Frames of a WAL that SQLite ignores, because a frame before them is damaged.

SQLite takes the first frame whose checksum is wrong for the end of the WAL, without an error. The format is described
in https://www.sqlite.org/walformat.html.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

__all__ = ["Ignored", "ignored_frames"]

#: Magic number, version, page size, checkpoint number, two salts, two checksums.
_HEADER = struct.Struct(">8I")
#: Page number, pages of the database after a commit (else 0), two salts, two checksums.
_FRAME = struct.Struct(">6I")
#: The magic number of a WAL whose checksums are sums of big-endian words. The other one is smaller by one.
_BIG_ENDIAN = 0x377F0683
_MASK = 0xFFFFFFFF


class Ignored(NamedTuple):
    """Intact frames that SQLite ignores."""

    frames: int = 0
    commits: int = 0


def ignored_frames(path: str, page_size: int, valid: int) -> Ignored:
    """Count the intact frames, up to the last commit, behind the first damaged one.

    ``valid``: how many frames SQLite reads. A frame is intact if it has the salts of this WAL, and if its checksum
    follows from the one of the frame before it, as it is stored or as it should be. Frames of an earlier WAL have other
    salts, and those of a transaction that was not finished have no commit.
    """
    size = _FRAME.size + page_size
    try:
        wal = open(path, "rb", buffering=0)  # noqa: PTH123, SIM115 - Path.open() has the same problem
    except FileNotFoundError:
        return Ignored()
    with wal:

        def read(at: int, length: int) -> bytes:
            wal.seek(at)
            return wal.read(length).ljust(length, b"\0")

        end = wal.seek(0, 2)
        count = (end - _HEADER.size) // size
        if count <= valid:
            return Ignored()
        start = read(0, _HEADER.size)
        magic, _, _, _, *salts, one, two = _HEADER.unpack(start)
        order = ">" if magic == _BIG_ENDIAN else "<"
        stored = one, two
        # SQLite ignores all frames behind a damaged header.
        broken = _checksum(order, (0, 0), start[:24]) != stored
        if broken:
            _, _, *salts, _, _ = _FRAME.unpack(read(_HEADER.size, _FRAME.size))
        if valid:
            *_, one, two = _FRAME.unpack(read(_HEADER.size + (valid - 1) * size, _FRAME.size))
            stored = one, two
        intact = 0
        # The checksums that the frame before may have.
        before = [stored]
        found = Ignored()
        for number in range(valid, count):
            at = _HEADER.size + number * size
            head = read(at, _FRAME.size)
            page, pages, *own, one, two = _FRAME.unpack(head)
            stored, expected = (one, two), []
            # The content of most frames behind the end is never read: they are those of an earlier WAL.
            if own == salts and page:
                text = head[:8] + read(at + _FRAME.size, page_size)
                expected = [_checksum(order, each, text) for each in before]
            before = [stored, *expected[:1]]
            if stored not in expected:
                broken = True
            elif broken:
                intact += 1
                if pages:
                    found = Ignored(intact, found.commits + 1)
    return found


def _checksum(order: str, before: tuple[int, int], text: bytes) -> tuple[int, int]:
    one, two = before
    for first, second in struct.iter_unpack(f"{order}II", text):
        one = (one + first + two) & _MASK
        two = (two + second + one) & _MASK
    return one, two
