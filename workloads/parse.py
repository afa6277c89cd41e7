"""Workloads as text, `gemm m=8192 n=8192 k=8192 dtype=bf16`: on the command line, in files and in reference rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from arch.digits import whole_size
from arch.errors import InputError
from arch.near import hint
from arch.units import BYTES
from workloads import written
from workloads.ops import Operator, operator_class, short_words


def parse(text: str) -> Operator:
    """The operator that `text` describes; InputError names the word that is wrong and the nearest right one."""
    return parse_words(text.split())


def parse_words(words: Iterable[str]) -> Operator:
    """Like `parse`, from separate words, the operator's name first."""
    word, *pairs = list(words) or [""]
    if not word:
        raise InputError("no operator given, such as: gemm m=4096 n=4096 k=4096 dtype=bf16")
    if written.CUBIN.fullmatch(word):
        from workloads.compiled import read_cubin

        return read_cubin([word, *pairs])
    if written.TRACE.fullmatch(word):
        from workloads.accelsim import read_words

        return read_words([word, *pairs])
    if match := written.WORD.fullmatch(word):
        return _of_file([word, *pairs], written.function_of(match["path"], match["function"]))
    cls = operator_class(word)
    return cls(**values_of(word, cls, pairs, short_words(word)))


def values_of(
    word: str, cls: type, pairs: Iterable[str], given: Mapping[str, int | str] = MappingProxyType({})
) -> dict[str, Any]:
    """Values of the fields of a declared dataclass that pairs `key=value` give. given: those that its word says."""
    keys = {f.name: f for f in dataclasses.fields(cls)}
    values: dict[str, Any] = dict(given)
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key not in keys:
            raise InputError(f"{word}: unknown key {key!r}, one of {', '.join(keys)}{hint(key, keys)}")
        if not equals or not value:
            raise InputError(f"{word}: {pair!r} has no value, write {key}=VALUE")
        if key in values:
            raise InputError(f"{word}: key {key} is given twice, as {values[key]} and {value}")
        meta = keys[key].metadata
        whole = meta["kind"] in ("extent", "count")
        values[key] = _bytes(word, key, value) if "bytes" in meta else _integer(word, key, value) if whole else value
    required = [name for name, f in keys.items() if f.default is dataclasses.MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise InputError(f"{word}: {', '.join(missing)} missing, needed are {', '.join(required)}")
    return values


def whole_keys(text: str) -> Mapping[str, bool]:
    """Keys of the workload that a text begins with, and whether their values are whole numbers."""
    word = (text.split() or [""])[0]
    if written.CUBIN.fullmatch(word) or (written.WORD.fullmatch(word) and _is_triton(word)):
        from workloads.compiled import pairs_of

        return {key: value.isdigit() for key, value in pairs_of(text.split()).items()}
    if written.WORD.fullmatch(word):
        return {name: kind is int for name, kind in written.keys_of(word).items()}
    if written.TRACE.fullmatch(word):
        return {}
    return {f.name: f.metadata.get("kind") in ("extent", "count") for f in dataclasses.fields(operator_class(word))}


def _of_file(words: list[str], made: Any) -> Operator:
    """A function of somebody's file as a workload: a Triton kernel, or what makes a program."""
    if not _of_triton(made):
        return written.parse_own(words)
    from workloads.triton_kernels import read_triton

    return read_triton(words, made)


def _is_triton(word: str) -> bool:
    match = written.WORD.fullmatch(word)
    return match is not None and _of_triton(written.function_of(match["path"], match["function"]))


def _of_triton(made: Any) -> bool:
    """Whether a function of a file is a kernel of Triton, perhaps below an autotuner."""
    return type(made).__module__.startswith("triton.runtime") and hasattr(made, "fn")


def _bytes(word: str, key: str, value: str) -> int:
    """The bytes that `value` spells: a size with its unit, or a whole number."""
    if not value.endswith("B"):
        return _integer(word, key, value)
    try:
        found = Fraction(BYTES.parse(value))
    except ValueError as error:
        raise InputError(f"{word} {key}={value[:40]}: {error}") from None
    if found.denominator != 1:
        raise InputError(f"{word} {key}={value[:40]}: must be whole bytes")
    return int(found)


def _integer(word: str, key: str, value: str) -> int:
    """The integer that `value` spells."""
    number = whole_size(value.removeprefix("-"))
    if number is None:
        raise InputError(f"{word} {key}={value[:40]}: must be a whole number, such as 4096, 4k or 2**12")
    return -number if value.startswith("-") else number
