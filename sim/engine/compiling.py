"""What holds while a kernel is compiled: what numba works out anew at each use is worked out once.

A kernel of 300 functions takes one compile of each. Numba keeps little between them, and much of its work is to find,
by trying and failing, that something is not there.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba.core import base, errors, event, targetconfig, types
from numba.core.typing.context import BaseContext

_COLOURS = ("code", "errmsg", "filename", "indicate", "highlight", "reset")


_within = False

FUNCTIONS = 330
"""About as many as an engine has; what LLVM does with them at the end stands at 99 %."""

LINE_S = 10.0
"""Seconds between lines of progress where stderr is no terminal."""

DRAW_S = 0.5
"""Seconds between drawings on a terminal."""


class _Counted(event.Listener):
    """Says on stderr how many functions of an engine are compiled: on a terminal in one line that goes at the end, else
    a line every ten seconds."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._terminal = sys.stderr.isatty()
        self._done = 0
        self._next_s = time.monotonic() + (DRAW_S if self._terminal else LINE_S)

    def on_start(self, event: Any) -> None:
        """A function begins."""

    def on_end(self, event: Any) -> None:
        """A function is compiled."""
        self._done += 1
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + (DRAW_S if self._terminal else LINE_S)
            share = min(99, 100 * self._done // FUNCTIONS)
            begin, end = ("\r\033[K", "") if self._terminal else ("", "\n")
            print(f"{begin}tilewave: {self._label}: {share} %", end=end, file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Removes what stands on a terminal."""
        event.unregister(_COMPILE, self)
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


_COMPILE = "numba:compile"
_counted: list[_Counted] = []
_foreseen: list[Callable[[], str]] = []


@contextlib.contextmanager
def foreseen(tell: Callable[[], str]) -> Iterator[None]:
    """Within it, a long compile begins with what is known before the simulation: what `tell` returns."""
    _foreseen.append(tell)
    try:
        yield
    finally:
        _foreseen.pop()


def say_compiling(text: str) -> None:
    """Says that a long compile begins, what is known until it ends, and from now on how far it is."""
    clear = "\r\033[K" if sys.stderr.isatty() else ""  # a progress bar may stand there
    print(f"{clear}tilewave: {text}", file=sys.stderr, flush=True)
    if _foreseen:
        print(f"tilewave: until then: {_foreseen[-1]()}", file=sys.stderr, flush=True)
    if not _counted:
        _counted.append(_Counted(text.partition(",")[0]))
        event.register(_COMPILE, _counted[0])


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Compiles within it, also of kernels that a kernel calls, do nothing twice (numba compiles in one thread)."""
    global _within
    if _within:
        yield
        return
    colours = type(errors.termcolor())
    plain = {name: staticmethod(_as_it_is) for name in _COLOURS}
    with contextlib.ExitStack() as stack:
        for owner, name, wrapped in (
            (types.BaseFunction, "get_call_type", _operators_resolved_once),
            (BaseContext, "resolve_value_type", _values_typed_once),
            (base.BaseContext, "get_function", _missed_once),
            (base.BaseContext, "get_abi_sizeof", _sizes_once),
            (event, "install_timer", _no_timer),
        ):
            stack.enter_context(_replaced(owner, name, wrapped(getattr(owner, name))))
        # Most of its errors are caught and never shown; colorama takes longer for their colours than all the rest.
        for name, method in plain.items():
            stack.enter_context(_replaced(colours, name, method))
        _within = True
        try:
            yield
        finally:
            _within = False
            while _counted:
                _counted.pop().stop()


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _as_it_is(message: str) -> str:
    return message


def _operators_resolved_once(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """What an operator is on its types gets remembered: numba tries dozens of templates for each sum of two int64 anew,
    a quarter of the time."""
    known: dict[Any, Any] = {}
    modes: dict[int, Any] = {}  # by identity, flags that functions are compiled with and the first equal ones

    def remembered(function: Any, context: Any, args: Any, keywords: Any) -> Any:
        if keywords or not all(a.is_precise() for a in args):
            return resolve(function, context, args, keywords)
        flags = targetconfig.ConfigStack.top_or_none()
        if id(flags) not in modes:
            modes[id(flags)] = flags, next((mode for _, mode in modes.values() if mode == flags), flags)
        key = function, tuple(args), id(modes[id(flags)][1])
        if key not in known:
            known[key] = resolve(function, context, args, keywords)
        return known[key]

    return remembered


def _values_typed_once(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """The type of what a name of a module stands for, such as a function or an enum: numba writes an error first."""
    known: dict[int, Any] = {}  # by identity, values, so that they stay, and their types

    def remembered(context: Any, value: Any) -> Any:
        if id(value) not in known:
            known[id(value)] = value, resolve(context, value)
        return known[id(value)][1]

    return remembered


def _missed_once(find: Callable[..., Any]) -> Callable[..., Any]:
    """What types have no code for, such as an element at a constant place: numba looks into all modules each time."""
    missing: dict[Any, str] = {}

    def remembered(context: Any, function: Any, signature: Any, _firstcall: bool = True) -> Any:
        if not isinstance(function, str):
            return find(context, function, signature, _firstcall)
        key = function, signature.args
        if key in missing:
            raise NotImplementedError(missing[key])
        try:
            return find(context, function, signature, _firstcall)
        except NotImplementedError as error:
            missing[key] = str(error)
            raise

    return remembered


def _sizes_once(measure: Callable[..., Any]) -> Callable[..., Any]:
    """Bytes of a type. Numba has LLVM read a module for each."""
    known: dict[str, int] = {}

    def remembered(context: Any, kind: Any) -> int:
        name = "a pointer" if isinstance(kind, ir.PointerType) else str(kind)
        if name not in known:
            known[name] = measure(context, kind)
        return known[name]

    return remembered


def _no_timer(install: Callable[..., Any]) -> Callable[..., Any]:
    """No stop-watches: each function that waits for others to be compiled has two, which hear of each call of LLVM."""
    return lambda *what: contextlib.nullcontext()
