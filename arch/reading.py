"""Files that people give: read as a whole and within a limit, or one error that names the file.

Everything that is read from outside comes through here: a pipe or a device might never end, a few kilobytes can unpack
to gigabytes, and a document can be nested deeper than what walks through it can follow.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, Protocol

from arch.errors import InputError

MOST_BYTES = 16 << 20
"""Of a file of text. What reads it takes seconds for so much."""

MOST_BINARY_BYTES = 2 << 30
"""Of a model, a cubin, an array or a trace, packed or not."""

_PIECE_BYTES = 1 << 20

MOST_LEVELS = 100
"""Of a JSON document."""


class Stream(Protocol):
    """What gives bytes, at most so many at once and none at its end."""

    def read(self, size: int = -1, /) -> bytes:
        """The next ones."""


def content(path: str | Path, where: str = "", most_bytes: int = MOST_BINARY_BYTES) -> bytes:
    """The bytes of a regular file. where: what an error calls it; else its path. InputError where it cannot be read."""
    where = where or str(path)
    try:
        with open(path, "rb", opener=_open) as file:
            status = os.fstat(file.fileno())
            regular, short = stat.S_ISREG(status.st_mode), status.st_size <= most_bytes
            found = b"".join(_pieces(file, most_bytes)) if regular and short else b""
    except (OSError, ValueError) as error:  # ValueError: a NUL or half a character in its name
        raise InputError(f"{where}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not regular:
        raise InputError(f"{where}: cannot be read: it is no regular file")
    if not short or len(found) > most_bytes:
        raise InputError(f"{where}: cannot be read: it has more than {most_bytes >> 10:,} KiB")
    return found


def _pieces(file: Stream, most_bytes: int) -> Iterator[bytes]:
    """What a file holds, and no more than a piece beyond what it may: a buffer for all of that is not asked for."""
    left = most_bytes
    while left >= 0 and (piece := file.read(_PIECE_BYTES)):
        left -= len(piece)
        yield piece


def _open(path: str, flags: int) -> int:
    """Opens also a pipe that nobody writes to at once, where it can be seen that it is one."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def text(path: str | Path, where: str = "", most_bytes: int = MOST_BYTES, errors: str = "strict") -> str:
    """The text of a file in UTF-8, with or without a byte order mark, its lines ended by newlines alone."""
    try:
        found = content(path, where, most_bytes).decode("utf-8-sig", errors=errors)
    except UnicodeDecodeError as error:
        raise InputError(f"{where or path}: cannot be read: byte {error.start} is not UTF-8") from None
    return found.replace("\r\n", "\n").replace("\r", "\n")


def document(written: str | bytes, where: str) -> Any:
    """A JSON document. InputError for what is none, what has no number or letter behind it, and what is too deep."""
    deep = f"{where}: is nested more than {MOST_LEVELS} levels deep"
    try:
        found = json.loads(written, parse_constant=_no_number)
    except RecursionError:
        raise InputError(deep) from None
    except ValueError as error:
        raise InputError(f"{where}: is not JSON ({error})") from None
    level = [found]
    for _ in range(MOST_LEVELS):
        inside: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                _check_letters("".join(value), where)
                inside += value.values()
            elif isinstance(value, list):
                inside += value
            elif isinstance(value, str):
                _check_letters(value, where)
        if not inside:
            return found
        level = inside
    raise InputError(deep)


def unpacked(stream: Stream, where: str, most_bytes: int = MOST_BINARY_BYTES) -> bytes:
    """All that a stream which unpacks gives; InputError once that is longer than it may be."""
    found = bytearray()
    while piece := stream.read(_PIECE_BYTES):
        found += piece
        if len(found) > most_bytes:
            raise InputError(f"{where}: unpacks to more than {most_bytes >> 10:,} KiB")
    return bytes(found)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _check_letters(value: str, where: str) -> None:
    """InputError for half a character: text that nothing can write."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: holds a lone surrogate, which is no character") from None
