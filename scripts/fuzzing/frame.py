"""Kinds of hostile input, and how cases of them are made and tried.

A kind is a function of one input and a folder for files, under `@kind`; what it gets are valid inputs with small
changes. It may return or raise `InputError`. Cases run in a process beside this one, so that a crash or an endless loop
is found as well, and go on behind the case that ended it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import select
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arch.errors import InputError

SECONDS = 20
"""What any hostile input may take."""

VALID_SECONDS = 300
"""What a valid one may take: the first of a kind may wait for engines that are compiled."""

GRACE_S = 5
"""Behind that, until what does not hear the alarm (compiled code) is ended from outside."""

ADDRESS_SPACE_BYTES = 4 << 30

TOKENS = (
    *("", "0", "-1", "1e999", "nan", "inf", "-inf", "1e-400", "1e400", "1_0", "0x10", "²", "٣", "𝟚"),
    *("9" * 30, "9" * 5000, "é" * 300, "true", "null", "cycles", "../", "/dev/zero", "!!python/object:os.system"),
    *(" ", "\t", "\n", "\0", "\x1b[31m", "\u202e", "=", ":", ",", "*", "[", "{", "}", "&a", "*a", "<<", "$x$"),
    *("'", '"', "--", "#", "%s", "{0}", "\\", "\ud800", "\udcff", "[" * 5000, '{"a":' * 3000),
)

NO_FILES = ("<pipe>", "<zeros>", "<folder>", "<dangling link>", "<link to itself>", "<nothing>")
"""What may stand in a file's place."""


@dataclass(frozen=True)
class Kind:
    """Something that reads input. made: an input by a source of chance. call: reads one. valid: some that are right."""

    name: str
    made: Callable[[random.Random], Any]
    call: Callable[[Any, Path], object]
    valid: Sequence[Any] = ()


KINDS: dict[str, Kind] = {}


def kind(name: str, *valid: Any, change: Callable[[random.Random, Any], Any] | None = None) -> Callable[[Any], Any]:
    """Registers a kind: `change` (small changes of a text) makes inputs of valid ones. Valid is anything, such as a
    number of a program, where `change` knows what to make of it."""
    how = change or changed

    def register(call: Callable[[Any, Path], object]) -> Callable[[Any, Path], object]:
        KINDS[name] = Kind(name, lambda rng: how(rng, rng.choice(valid)), call, valid)
        return call

    return register


# ------------------------------------------------------------------------------------------------------------- changes


def changed(rng: random.Random, text: str) -> str:
    """A text with one to three small changes."""
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(text) + 1)
        j = min(len(text), i + rng.choice((1, 1, 2, 5, 20)))
        words = text.split()
        match rng.randrange(7):
            case 0:
                text = text[:i] + text[j:]
            case 1:
                text = text[:i] + rng.choice(TOKENS) + text[i:]
            case 2:
                text = text[:i] + rng.choice(TOKENS) + text[j:]
            case 3:
                text = text[:j] + text[i:j] * rng.choice((1, 3, 50)) + text[j:]
            case 4 if words:
                text = text.replace(rng.choice(words), rng.choice(TOKENS), 1)
            case 5 if "=" in text:
                left, _, right = text.partition("=")
                text = f"{left}={rng.choice(TOKENS)}{right if rng.random() < 0.3 else ''}"
            case _:
                text = text[:i] + chr(rng.choice((rng.randrange(128), rng.randrange(0xD7FF)))) + text[i:]
    return text


def changed_file(rng: random.Random, text: str) -> str:
    """A file's text with small changes, or something that is no file."""
    return rng.choice(NO_FILES) if rng.random() < 0.03 else changed(rng, text)


def changed_bytes(rng: random.Random, content: bytes) -> bytes | str:
    """Bytes with some of them flipped, cut out, doubled or replaced, or something that is no file."""
    if rng.random() < 0.03:
        return rng.choice(NO_FILES)
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 3, 8, 64))):
        i = rng.randrange(len(found) + 1)
        j = min(len(found), i + rng.choice((1, 1, 2, 4, 8, 64)))
        match rng.randrange(4):
            case 0:
                del found[i:j]
            case 1:
                found[i:i] = found[i:j] * rng.choice((1, 2, 50))
            case 2:
                found[i:j] = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * (j - i)
            case _ if j > i:
                found[i] ^= 1 << rng.randrange(8)
            case _:
                pass
    return bytes(found)


def changed_json(rng: random.Random, text: str) -> str:
    """JSON whose values are of other kinds, deeper, longer or gone: what a change of letters seldom leaves valid."""
    document = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        holder, key = rng.choice(list(_places(document)) or [({"": document}, "")])
        odd = (None, True, 0, -1, 1.5, 1e308, float("nan"), 10**40, "", "x", "\ud800", "\x1b[31m", [], {}, [1],
               {"a": 1}, _deep(rng.choice((3, 200, 900, 20_000))))  # fmt: skip
        match rng.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[rng.choice(("", "x", "\ud800", "a.b", "\n"))] = rng.choice(odd[:-1])
            case _:
                holder[key] = rng.choice(odd)
    return _dumped(document)


def _deep(levels: int) -> Any:
    return f"<{levels} deep>"


def _dumped(document: Any) -> str:
    """JSON with what is too deep for Python's own writer."""
    text = json.dumps(document)
    for levels in (3, 200, 900, 20_000):
        text = text.replace(f'"<{levels} deep>"', "[" * levels + "]" * levels)
    return text


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document, as its holder and its key there."""
    inside = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(inside):
        yield document, key
        if isinstance(value, dict | list):
            yield from _places(value)


def file(content: str | bytes, folder: Path, name: str) -> Path:
    """A file of a content, or what stands in its place."""
    path = folder / name
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    match content:
        case "<pipe>":
            os.mkfifo(path)
        case "<zeros>":
            path.symlink_to("/dev/zero")
        case "<folder>":
            path.mkdir()
        case "<dangling link>":
            path.symlink_to(folder / "nowhere" / "nothing")
        case "<link to itself>":
            path.symlink_to(path)
        case "<nothing>":
            pass
        case str():
            path.write_text(content, encoding="utf-8", errors="surrogatepass", newline="")
        case _:
            path.write_bytes(content)
    return path


# -------------------------------------------------------------------------------------------------------------- trying


class _TooLongError(Exception):
    pass


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Raises `_TooLongError` where the body takes longer."""

    def ring(*_: object) -> None:
        raise _TooLongError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tried(tested: Kind, given: Any, folder: Path, seconds: int = SECONDS) -> str:
    """What is wrong with how a kind takes an input; empty if nothing is."""
    try:
        with _within(seconds):
            tested.call(given, folder)
    except InputError as error:
        said = str(error)
        return "" if len(said.splitlines()) == 1 else f"an error without a text, or of more than a line: {said[:200]!r}"
    except (Exception, SystemExit, RecursionError):
        return traceback.format_exc(limit=-4)
    return ""


def case(tested: Kind, seed: int, number: int) -> Any:
    """The input of a case: valid ones have numbers below 0."""
    if number < 0:
        return tested.valid[number]
    return tested.made(random.Random(f"{seed} {tested.name} {number}"))


def tried_cases(tested: Kind, seed: int, numbers: range) -> list[str]:
    """Findings of the cases of a kind, and of its first valid inputs."""
    waiting = [*range(-min(3, len(tested.valid)), 0), *numbers]
    found = []
    while waiting:
        done, problems, end = _in_a_fork(tested, seed, waiting)
        found += problems
        if end:
            found.append(f"{tested.name}, case {waiting[done]}: {_shown(tested, seed, waiting[done])}: {end}")
            done += 1
        waiting = waiting[done:]
    return found


def _shown(tested: Kind, seed: int, number: int) -> str:
    return repr(case(tested, seed, number))[:300]


def _seconds(number: int) -> int:
    return SECONDS if number >= 0 else VALID_SECONDS


def _in_a_fork(tested: Kind, seed: int, numbers: Sequence[int]) -> tuple[int, list[str], str]:
    """How many cases came to an end, the findings among them, and what ended the process before its time."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.close(reads)
        _try_all(tested, seed, numbers, writes)
    os.close(writes)
    done, found, end = 0, [], ""
    with os.fdopen(reads, encoding="utf-8") as lines:
        while True:
            seconds = GRACE_S + _seconds(numbers[min(done, len(numbers) - 1)])
            if not select.select([reads], [], [], seconds)[0]:
                os.kill(child, signal.SIGKILL)
                end = f"longer than {seconds} s"
            line = lines.readline()
            if not line:
                break
            done += 1
            found += [said for said in [json.loads(line)] if said]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if done < len(numbers) and not end:
        end = f"the process ended with {signal.Signals(-status).name if status < 0 else status}"
    return done, found, end


def _try_all(tested: Kind, seed: int, numbers: Sequence[int], writes: int) -> None:
    """The child: tries the cases, says a line for each, and never returns."""
    try:
        faulthandler.disable()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with tempfile.TemporaryDirectory() as folder:
            for number in numbers:
                problem = tried(tested, case(tested, seed, number), Path(folder), _seconds(number))
                said = f"{tested.name}, case {number}: {_shown(tested, seed, number)}: {problem}" if problem else ""
                os.write(writes, (json.dumps(said[:3000]) + "\n").encode())
    finally:
        os._exit(0)
