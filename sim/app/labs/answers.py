"""The answers of a notebook in a process of their own, and how a grader asks it.

The grader holds the questions, what is right, and the marks; the process holds the answers and one socket, over which
it is called with values and returns values. Whatever it does to its own copy of the program, the grader's stays as it
is.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sim.app.labs import Wrong, confine, wire
from sim.app.run import simulate

_FIRST = ("copy n=1k", "t4")
"""Run before the answers, so that what an engine is compiled to is kept: they write no file."""

_ENDED = "the process that has the answers has ended, or answers no more"
_MOST_LETTERS = 300


class Answers(Mapping[str, Any]):
    """What the answers define, by name: values, and functions that are called where they are. Close it."""

    def __init__(self, sources: Sequence[str], names: Sequence[str]) -> None:
        """Executes the sources one after the other. names: what is asked for."""
        simulate(*_FIRST)
        here, there = socket.socketpair()
        self._child = os.fork()
        if not self._child:
            _serve(sources, names, there)
        there.close()
        self._socket = here
        self._stream = here.makefile("rb")
        self.broken = ""
        """The first error of the answers, in a line."""
        self._values: dict[str, Any] = {}
        try:
            found = self._received()
            self.broken = _line(found["broken"])
            self._values = {name: self._value(found["values"][name]) for name in names if name in found["values"]}
        except Wrong as error:
            self.broken = str(error)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            self.broken = _ENDED

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)

    def _value(self, document: Any) -> Any:
        return wire.unpacked(document, lambda number: _Function(self, number))

    def _received(self) -> Any:
        try:
            line = self._stream.readline(wire.MOST_BYTES)
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise Wrong(_ENDED)
        return wire.read(line)

    def call(self, number: int, arguments: tuple[Any, ...]) -> Any:
        """What a function returns; Wrong, with its error, where it raises one or returns what is nothing to send."""
        message = {"call": number, "arguments": wire.Packer().packed(arguments)}
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
            found = self._received()
            if "error" in found:
                raise Wrong(_line(found["error"]))
            return self._value(found["value"])
        except OSError:
            raise Wrong(_ENDED) from None
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise Wrong(f"what your function returns cannot be read: {error}") from None


class _Function:
    """A function of the answers, called where it is."""

    def __init__(self, answers: Answers, number: int) -> None:
        self._answers, self._number = answers, number

    def __call__(self, *arguments: Any) -> Any:
        return self._answers.call(self._number, arguments)


def _line(said: Any) -> str:
    return str(said)[:_MOST_LETTERS]


# ------------------------------------------------------------------------------------------------------ the other side


def _serve(sources: Sequence[str], names: Sequence[str], there: socket.socket) -> None:
    """The child: executes the answers, then calls them as it is asked to, and never returns."""
    try:
        confine.give_up_rights(there.fileno())
        packer = wire.Packer()
        answers, broken = _executed(sources)
        values = {name: packer.packed(answers[name]) for name in names if name in answers}
        there.sendall(json.dumps({"broken": broken, "values": values}).encode() + b"\n")
        for line in there.makefile("rb"):
            there.sendall(json.dumps(_called(line, packer)).encode() + b"\n")
    finally:
        os._exit(0)


def _executed(sources: Sequence[str]) -> tuple[dict[str, Any], str]:
    """What the answers define, executed one after the other; and the first error, in a line."""
    answers: dict[str, Any] = {"__name__": "lab", "simulate": simulate}
    broken = ""
    for number, source in enumerate(sources, 1):
        try:
            exec(compile(source, f"answer {number}", "exec"), answers)
        except BaseException as error:  # somebody's code
            broken = broken or f"answer {number}: {_named(error)}"
    return answers, broken


def _called(line: bytes, packer: wire.Packer) -> dict[str, Any]:
    try:
        asked = json.loads(line)
        arguments = wire.unpacked(asked["arguments"], _no_function)
        given = (simulate(a.workload, a.machine) if isinstance(a, wire.Run) else a for a in arguments)
        return {"value": packer.packed(packer.functions[asked["call"]](*given))}
    except BaseException as error:  # somebody's code
        return {"error": _named(error)}


def _named(error: BaseException) -> str:
    """An error's kind and text; of one whose text is an error itself, its kind."""
    try:
        text = str(error)
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}"[:_MOST_LETTERS]


def _no_function(number: int) -> Callable[..., Any]:
    raise ValueError("graders send no functions")
