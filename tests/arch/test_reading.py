"""Files that people give: what is no file, too long, too deep or no text is one error that names it."""

from __future__ import annotations

import io
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from arch import reading
from arch.errors import InputError


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)], ids=["pipe", "folder", "device"]
)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x")
    with pytest.raises(InputError, match=r"^--net \S*x: cannot be read: (it is no regular file|Is a directory)$"):
        reading.content(tmp_path / "x", f"--net {tmp_path / 'x'}")


@pytest.mark.parametrize("target", ["nothing", "x"])
def test_a_link_to_nothing_is_an_error_of_the_system(tmp_path: Path, target: str) -> None:
    os.symlink(tmp_path / target, tmp_path / "x")
    with pytest.raises(InputError, match=r"x: cannot be read: (No such file|Too many levels)"):
        reading.content(tmp_path / "x")


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be read: embedded null"):
        reading.text("a\0b")


def test_a_file_may_be_as_long_as_the_limit_and_no_longer(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a" * 2048)
    assert len(reading.content(tmp_path / "x", most_bytes=2048)) == 2048
    with pytest.raises(InputError, match="it has more than 1 KiB"):
        reading.content(tmp_path / "x", most_bytes=2047)


def test_text_has_no_mark_and_one_end_of_lines(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes("\ufeffé\r\na\rb\n".encode())
    assert reading.text(tmp_path / "x") == "é\na\nb\n"
    (tmp_path / "x").write_bytes(b"ab\xff")
    with pytest.raises(InputError, match="byte 2 is not UTF-8"):
        reading.text(tmp_path / "x")


@pytest.mark.parametrize(
    ("written", "says"),
    [("[" * 101 + "]" * 101, "nested more than 100"), ("[" * 50_000, "nested more than 100"), ("{", "is not JSON"),
     ("[NaN]", "is not JSON"), ("9" * 5000, "is not JSON"), ('["\\ud800"]', "lone surrogate"),
     ('{"\\udfff": 1}', "lone surrogate")],
)  # fmt: skip
def test_a_document_that_nothing_can_follow_is_refused(written: str, says: str) -> None:
    with pytest.raises(InputError, match=f"a.json: .*{says}"):
        reading.document(written, "a.json")


def test_a_document_is_what_it_says() -> None:
    deepest = "[" * 100 + "]" * 100
    assert reading.document(deepest, "a.json") is not None
    assert reading.document('{"a": [1, "\\ud83d\\ude00", null]}', "a.json") == {"a": [1, "😀", None]}


def test_what_unpacks_to_too_much_ends_where_it_is_too_much() -> None:
    packed = lzma.compress(b"\0" * (8 << 20))
    with lzma.open(io.BytesIO(packed)) as stream:
        assert reading.unpacked(stream, "x", 8 << 20) == b"\0" * (8 << 20)
    with lzma.open(io.BytesIO(packed)) as stream:
        with pytest.raises(InputError, match="x: unpacks to more than 2,048 KiB"):
            reading.unpacked(stream, "x", 2 << 20)
        assert stream.tell() <= 3 << 20
