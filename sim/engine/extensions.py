"""Policies that other packages register, in the engines: what they consist of, and how compiled code calls them.

A package names an object of one of the classes here in its metadata, in the group `tilewave.schedulers` or
`tilewave.replacement`. Its functions are plain Python on whole numbers; they are compiled into the engines, and a
change of their source is a change of the engine (`sim.engine.jit.cache_key`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from numba.core.errors import NumbaError

from arch.errors import InputError
from arch.extensions import REPLACEMENTS, SCHEDULERS, Registered, registered
from sim.engine.jit import inner, resolved


@dataclass(frozen=True)
class Scheduler:
    """A policy of the warp scheduler.

    priority(since, last): the place of a warp among those of its sub-core that could issue at the same tick: 0 goes
    first, 63 last; of equals the one of the lower number goes. last: 1 for the warp that issued last and that a greedy
    policy would stay with. since: how many CTAs its SM has started after the warp's own; where warps take turns, how
    often its sub-core has issued since the warp last did. takes_turns: whether they do; then no warp issues more than
    `sm.round_robin_run` instructions of an op in one go.
    """

    priority: Callable[[int, int], int]
    takes_turns: bool = False


@dataclass(frozen=True)
class Replacement:
    """A replacement policy of a cache; `sim.memory.replacement` says what the functions return.

    A set of 1 to 16 ways has one whole number of 64 bits, its word, which means what the policy wants it to.
    """

    first_word: Callable[[int], int]
    """(ways): the word of an empty set."""
    victim: Callable[[int, int], int]
    """(word, ways): the way that the next line takes."""
    fill: Callable[[int, int, int], int]
    """(word, ways, way): the word after a line has been put there."""
    touch: Callable[[int, int, int], int]
    """(word, ways, way): the word after a hit."""
    drop: Callable[[int, int, int], int]
    """(word, ways, way): the word after the way has become empty."""


_KINDS: dict[str, type[Any]] = {SCHEDULERS: Scheduler, REPLACEMENTS: Replacement}
_ARGUMENTS = {"priority": 2, "first_word": 1, "victim": 2, "fill": 3, "touch": 3, "drop": 3}


@dataclass(frozen=True)
class LoadedPolicy:
    """What became of a registered policy. policy: an object of its group's class; None where `problem` says why not."""

    entry: Registered
    policy: Any = None
    problem: str = ""


@cache
def loaded(group: str) -> tuple[LoadedPolicy, ...]:
    """All policies of a group, in the order of their names. One that cannot be loaded is no error until it is asked
    for."""
    return tuple(_loaded(entry) for entry in registered(group))


def _loaded(entry: Registered) -> LoadedPolicy:
    kind = _KINDS[entry.group]
    try:
        policy = entry.load()
    except Exception as error:  # whatever another package's module raises
        return LoadedPolicy(entry, problem=f"cannot be loaded ({type(error).__name__}: {error})")
    if not isinstance(policy, kind):
        return LoadedPolicy(
            entry, problem=f"is a {type(policy).__name__}, must be a sim.engine.extensions.{kind.__name__}"
        )
    for field in fields(kind):
        function, count = getattr(policy, field.name), _ARGUMENTS.get(field.name)
        if count is not None and len(inspect.signature(function).parameters) != count:
            return LoadedPolicy(entry, problem=f"{field.name} must take {count} arguments")
    return LoadedPolicy(entry, policy)


def policies(group: str) -> tuple[Any, ...]:
    """The policies of a group that could be loaded, in the order of their names."""
    return tuple(one.policy for one in loaded(group) if one.policy is not None)


def number_of(group: str, name: str) -> int:
    """The place of a policy among `policies`. InputError where it could not be loaded."""
    usable = 0
    for one in loaded(group):
        if one.entry.name == name:
            if one.policy is None:
                entry = one.entry
                raise InputError(f"{name}, entry point {entry.value} of {entry.package} ({group}): {one.problem}")
            return usable
        usable += one.policy is not None
    raise InputError(f"{name} is not registered in {group}")


def one_of(functions: Sequence[Callable[..., int]], nothing: Callable[..., int]) -> Any:
    """A compiled function that calls the one of a number, its first argument, with the others; `nothing`, which takes
    the number, too, ends it."""
    if not functions:
        return inner(inline=True)(nothing)
    first, rest = inner(inline=True)(functions[0]), one_of(functions[1:], nothing)

    @inner(inline=True)
    def chosen(number, *arguments):  # type: ignore[no-untyped-def]
        if number == 0:
            return first(*arguments)
        return rest(number - 1, *arguments)

    return chosen


def compiled(function: Any, *arguments: Any) -> Any:
    """What an engine's function is for its arguments (`sim.engine.jit.resolved`). InputError that names the policies of
    other packages where it cannot be compiled with them."""
    try:
        return resolved(function, *arguments)
    except NumbaError as error:
        names = [one.entry.name for group in _KINDS for one in loaded(group) if one.policy is not None]
        if not names:
            raise
        why = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), "")
        raise InputError(
            f"the engine cannot be compiled with what other packages register ({', '.join(names)}): {why}; correct or "
            "uninstall them"
        ) from error
