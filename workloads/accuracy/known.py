"""How far a simulated time can be trusted: what rows like it were off by, as an interval for the next one.

The interval is that of split conformal prediction (Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World,
2005): of n rows, the errors of rank 0.1 (n + 1) and 0.9 (n + 1) hold eight of ten further ones of the same kind,
whatever their distribution. `scripts/docs tables accuracy` counts it on sealed rows. A board without rows is one more
of K boards, not one more row: its interval is that of the share times 1 + 1/K (Lee, Barber, Willett,
Distribution-free inference with hierarchical data, 2023).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from arch.errors import InputError
from workloads.accuracy.results import Result
from workloads.ops import operator_class, short_words

SHARE = 0.8
"""Of further rows that an interval shall hold."""

FEWEST = 12
"""Rows of a kind that make an interval: with fewer, its ends are the outermost ones."""

LENGTH = 3
"""Times by which a row's simulation may be longer or shorter than a case and still be of its length."""

BOARDS = 3
"""Boards with rows from which one without any is judged."""


class Board(NamedTuple):
    """Where a row was measured, or a run simulated. machine: a preset's name, or that of a file."""

    family: str
    chip: str
    machine: str


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked about: board, operator, number format, and the simulated time in microseconds."""

    board: Board
    op: str
    dtype: str
    time_us: float


@dataclass(frozen=True, slots=True)
class Known:
    """What rows like a case were off by, in per cent of measured times.

    of: which rows, in words. own: whether they are of the case's own machine. low, high: ends of the interval. bias:
    mean signed error; above 0, simulations are too slow.
    """

    of: str
    own: bool
    rows: int
    mean: float
    bias: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """As a report says it."""
        way = "fast" if self.bias < 0 else "slow"
        lead = "Measured rows like it" if self.own else "No row of it was measured on this machine. Rows like it"
        which = "of them" if self.own else "of its own would be"
        return (
            f"{lead} ({self.of}): {self.mean:.0f} % off in the mean, {abs(self.bias):.0f} % too {way}; 80 % {which} "
            f"between {self.low:+.0f} and {self.high:+.0f} % ({self.rows} rows on which nothing was calibrated)."
        )


def known(case: Case, judges: tuple[Result, ...], boards: Callable[[str], Board], share: float = SHARE) -> Known | None:
    """What is known of a case; None where no row is like it.

    judges: rows on which nothing was calibrated. boards: says which board a machine is.
    share: of further rows that the interval shall hold. The nearest kind of rows that has
    enough of them speaks: of the operator, format and length on the machine; of operator and format; of the operator;
    of its kind; on boards with the chip; on other boards.
    """
    for kind in _own(case, judges):
        if len(kind.rows) >= FEWEST:
            return _known(kind, True, share)
    for kind in _foreign(case.board, case.op, judges, boards):
        count = len({result.machine for result in kind.rows})
        if len(kind.rows) >= FEWEST and count >= kind.boards:
            return _known(kind, False, share * (1 + 1 / count) if kind.boards > 1 else share)
    return None


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of rows like a case: its words, the rows, and how many boards they must come from."""

    of: str
    rows: list[Result]
    boards: int = 1


def _own(case: Case, judges: tuple[Result, ...]) -> Iterator[_Kind]:
    """Kinds of a machine's own rows like a case, the nearest first."""
    machine, op, dtype = case.board.machine, case.op, case.dtype
    here = _here(machine, judges)
    same = [result for result in here if result.op == op or _same(result.op, op)]
    alike = [result for result in same if result.dtype == dtype]
    near = [result for result in alike if 1 / LENGTH <= result.simulated_us / case.time_us <= LENGTH]
    yield _Kind(f"{op} in {dtype} on {machine}, a third to three times as long", near)
    yield _Kind(f"{op} in {dtype} on {machine}", alike)
    yield _Kind(f"{op} on {machine}", same)
    kind = word_and_kind(op)[1]
    like = [result for result in here if kind and word_and_kind(result.op)[1] == kind]
    yield _Kind(f"operators of the kind {kind} on {machine}", like)


@functools.lru_cache(maxsize=100)
def _here(machine: str, judges: tuple[Result, ...]) -> list[Result]:
    return [result for result in judges if result.machine == machine]


def _same(one: str, other: str) -> bool:
    """Whether two words are functions of one operator, as `gelu` and `exp` are."""
    return bool(short_words(one) and short_words(other))


@functools.lru_cache(maxsize=1000)
def _foreign(board: Board, op: str, judges: tuple[Result, ...], boards: Callable[[str], Board]) -> list[_Kind]:
    """Kinds of rows like a case of other machines of its family, the nearest first."""
    word, kind = word_and_kind(op)
    like = [
        result
        for result in judges
        if result.machine != board.machine
        and word_and_kind(result.op)[1] == kind
        and boards(result.machine).family == board.family
    ]
    same = [result for result in like if word_and_kind(result.op)[0] == word]
    of_chip = [result for result in same if boards(result.machine).chip == board.chip]
    return [
        _Kind(f"{op} on boards with the chip {board.chip}", of_chip),
        _Kind(f"{op} on other boards", _evenly(same), BOARDS),
        _Kind(f"operators of the kind {kind} on other boards", _evenly(like if kind else []), BOARDS),
    ]


def _evenly(results: Iterable[Result]) -> list[Result]:
    """As many rows of each board as the one in the middle has, so that no board speaks for all; spread by error."""
    ordered = sorted(results, key=lambda result: (result.machine, result.error_percent))
    boards = [list(found) for _, found in groupby(ordered, key=lambda result: result.machine)]
    if not boards:
        return []
    most = sorted(map(len, boards))[len(boards) // 2]
    return [result for board in boards for result in _spread(board, most)]


def _spread(results: Sequence[Result], most: int) -> list[Result]:
    if len(results) <= most:
        return list(results)
    return [results[round((number + 0.5) * len(results) / most - 0.5)] for number in range(most)]


@functools.cache
def word_and_kind(op: str) -> tuple[str, str]:
    """The operator's own word (of `gelu`: `pointwise`), and the kind under which profiles count it; of a program of
    one's own its name, and nothing."""
    try:
        cls = operator_class(op)
    except InputError:
        return op, ""
    return cls.word, cls.kind


def _known(kind: _Kind, own: bool, share: float) -> Known:
    errors = sorted(result.error_percent for result in kind.rows)
    count = len(errors)
    mean = math.fsum(map(abs, errors)) / count
    low, high = _at_rank(errors, (1 - share) / 2), _at_rank(errors, (1 + share) / 2)
    return Known(kind.of, own, count, mean, math.fsum(errors) / count, low, high)


def _at_rank(errors: Sequence[float], share: float) -> float:
    """The error of rank share (n + 1), between two of them where that is no whole number; the outermost beyond."""
    rank = min(max(share * (len(errors) + 1), 1), len(errors)) - 1
    below = math.floor(rank)
    above = min(below + 1, len(errors) - 1)
    return errors[below] + (rank - below) * (errors[above] - errors[below])


def holds(said: Known, error_percent: float) -> bool:
    """Whether an error lies in the interval."""
    return said.low <= error_percent <= said.high


@dataclass(frozen=True, slots=True)
class Ratios:
    """Errors of ratios of two machines' times for one measured operator, in per cent. mean: of absolute errors."""

    pairs: int
    mean: float


@functools.cache
def ratios(op: str, judges: tuple[Result, ...]) -> Ratios | None:
    """What is known of ratios between machines for an operator: of all pairs of rows that differ in the machine and the
    time alone. None with fewer than `FEWEST` pairs."""
    alike: dict[tuple[str, ...], list[Result]] = {}
    for result in judges:
        if result.op == op or _same(result.op, op):
            key = (result.op, result.dtype, result.schedule, result.source, result.shape, result.scope, result.l2)
            alike.setdefault(key, []).append(result)
    errors = [
        abs((1 + a.error_percent / 100) / (1 + b.error_percent / 100) - 1)
        for found in alike.values()
        for number, a in enumerate(found)
        for b in found[:number]
        if a.machine != b.machine
    ]
    return Ratios(len(errors), 100 * math.fsum(errors) / len(errors)) if len(errors) >= FEWEST else None
