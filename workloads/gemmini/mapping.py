"""Mappings on a Gemmini: tile sizes, the order of the loops over tiles, and what stays in the array, as one text.

`ws p=14 q=28 c=64 k=16 order=kqp` is a mapping whose weights stay (`os`: sums stay, of products alone): a tile has 14
rows and 28 columns of results, 64 channels and 16 filters; tiles follow each other with k outermost. Products have the
keys m, n and k. What a text leaves out is whole, or the tiling of the machine's own library where it names no size.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from arch.errors import InputError
from arch.gemmini import GemminiSpec
from arch.near import hint

PRODUCT, CONVOLUTION = "mnk", "npqksrc"
"""Dimensions, in the library's order of loops, the outermost first; n, p, q: images, rows and columns of results."""

KINDS = ("ws", "os")

MOST_CHOICES = 1_000_000
"""Tilings that a schedule may let the core look at."""

Sizes = Mapping[str, int]
Rows = Callable[[Sizes], tuple[int, int]]
"""Rows of the scratchpad and of the accumulators that a tile takes."""


@dataclass(frozen=True)
class Mapped:
    """A mapping of an operator. tile: extent of a tile by dimension; order: of the loops over tiles; choices: tilings
    that the core looks at while it runs, before it takes this one."""

    schedule: str
    tile: tuple[tuple[str, int], ...]
    order: str
    choices: int = 0

    def __str__(self) -> str:
        """As people type it: it gives this mapping again."""
        words = [self.schedule, *(f"{name}={size}" for name, size in self.tile), f"order={self.order}"]
        return " ".join([*words, f"choices={self.choices}"] if self.choices else words)

    @property
    def sizes(self) -> dict[str, int]:
        """Extent of a tile by dimension."""
        return dict(self.tile)


def mapped(kind: str, sizes: Sizes, order: str, choices: int = 0) -> Mapped:
    """A mapping with its dimensions in their order."""
    return Mapped(kind, tuple((name, sizes[name]) for name in sizes), order, choices)


def written(text: str, whole: Sizes, names: str, library: Callable[[str], Mapped]) -> Mapped:
    """The mapping that a schedule's text says, of an operator with the extents `whole`; InputError for a wrong word."""
    kind, *words = text.split()
    if kind not in KINDS:
        raise InputError(f"schedule={text}: begins with auto, ws or os{hint(kind, KINDS)}")
    if not words:
        return library(kind)
    sizes, order, choices = dict(whole), names, 0
    for word in words:
        match = re.fullmatch(r"(\w+)=(\w+)", word)
        if match is None or (match[1] not in ("order", "choices") and match[1] not in whole):
            known = ", ".join(f"{name}=SIZE" for name in whole)
            raise InputError(f"schedule={text}: unknown word {word}; words are {known}, order=, choices=")
        if match[1] == "order":
            order = _order(text, match[2], names)
        elif match[1] == "choices":
            choices = _choices(text, match[2])
        elif not match[2].isdigit() or not 1 <= int(match[2]) <= whole[match[1]]:
            raise InputError(f"schedule={text}: {word}: a tile has 1 to {whole[match[1]]} of {match[1]}")
        else:
            sizes[match[1]] = int(match[2])
    return mapped(kind, sizes, order, choices)


def _choices(text: str, count: str) -> int:
    """Tilings that the core looks at first."""
    if not count.isdigit() or int(count) > MOST_CHOICES:
        raise InputError(f"schedule={text}: choices={count}: the core looks at 0 to {MOST_CHOICES:,} tilings")
    return int(count)


def _order(text: str, order: str, names: str) -> str:
    """All dimensions: those that are named, then the others in the library's order."""
    wrong = [name for name in order if name not in names or order.count(name) > 1]
    if wrong:
        raise InputError(f"schedule={text}: order={order}: each of {', '.join(names)} once, not {wrong[0]}")
    return order + "".join(name for name in names if name not in order)


def room(spec: GemminiSpec, kind: str) -> tuple[int, int]:
    """Rows of scratchpad and accumulators that a tile may take: half of them where two tiles are at work."""
    share = 2 if kind == "ws" else 1
    return spec.scratchpad_rows // share, spec.accumulator_rows // share


def refuse_too_large(spec: GemminiSpec, mapping: Mapped, rows: Rows) -> None:
    """InputError where a tile does not fit."""
    for name, need, has in zip(
        ("scratchpad", "accumulator"), rows(mapping.sizes), room(spec, mapping.schedule), strict=True
    ):
        if need > has:
            raise InputError(
                f"schedule={mapping}: a tile takes {need:,} rows of the {name}, there are {has:,}"
                f"{' for each of two tiles' if mapping.schedule == 'ws' else ''}; smaller tiles, or more {name}.size"
            )


def shrunk(spec: GemminiSpec, kind: str, whole: Sizes, rows: Rows) -> tuple[Sizes, int]:
    """The library's tiling of a convolution: the largest extent shrinks until a tile fits, channels by blocks; then all
    grow again for as long as it fits. Columns stay at a block where rows can shrink instead. Returns how many tilings
    the library looked at, too."""
    block, sizes, looked = spec.array.size, dict(whole), 0
    limits = room(spec, kind)

    def fits(tile: Sizes) -> bool:
        nonlocal looked
        looked += 1
        return all(need <= has for need, has in zip(rows(tile), limits, strict=True))

    while not fits(sizes):
        spared = sizes["q"] <= block and sizes["p"] > 1
        name = max((n for n in sizes if not (n == "q" and spared)), key=lambda n: sizes[n])
        if sizes[name] == 1:
            break
        step = (sizes[name] % block or block) if name in "kc" else 1
        sizes[name] = max(1, sizes[name] - step)
    for names in (("q",), tuple(sizes)):
        grown = True
        while grown:
            grown = False
            for name in names:
                larger = {**sizes, name: sizes[name] + 1}
                if larger[name] <= whole[name] and fits(larger):
                    sizes, grown = larger, True
    return sizes, looked


def near_square(spec: GemminiSpec, kind: str, whole: Sizes, rows: Rows) -> Sizes:
    """The library's tiling of a product: square tiles of results that fill the accumulators, as deep as fits; then all
    grow by blocks for as long as it fits."""
    block = spec.array.size
    blocks = {name: -(-size // block) for name, size in whole.items()}
    scratch, sums = room(spec, kind)
    side = max(1, math.isqrt(sums // block))
    deep = max(1, scratch // 2 // block // side)
    tile = {"m": min(blocks["m"], side), "n": min(blocks["n"], side), "k": min(blocks["k"], deep)}

    def fits(name: str) -> bool:
        larger = {n: (size + (n == name)) * block for n, size in tile.items()}
        return tile[name] < blocks[name] and all(
            need <= has for need, has in zip(rows(larger), (scratch, sums), strict=True)
        )

    grown = True
    while grown:
        grown = False
        for name in "nmk":
            if fits(name):
                tile[name] += 1
                grown = True
    return {name: min(size * block, whole[name]) for name, size in tile.items()}


def searched(spec: GemminiSpec, whole: Sizes, steps: Sizes, orders: tuple[str, ...], rows: Rows) -> Iterator[Mapped]:
    """Mappings with whole tiles or such of a power of two of `steps`, that fit; a dimension without a step is whole."""
    choices = [
        sorted({min(whole[n], steps[n] << i) for i in range(12)}) if n in steps else [size] for n, size in whole.items()
    ]
    limits = room(spec, "ws")
    for values in itertools.product(*choices):
        tile = dict(zip(whole, values, strict=True))
        if all(need <= has for need, has in zip(rows(tile), limits, strict=True)):
            # Loops that run once stand anywhere: orders that differ in them alone are one mapping.
            loops = {tuple(n for n in order if tile[n] < whole[n]): order for order in reversed(orders)}
            yield from (mapped("ws", tile, order) for order in orders if order in loops.values())


def best(found: list[tuple[Mapped, int]], most: int) -> list[tuple[Mapped, int]]:
    """The mappings with the lowest estimates, each once."""
    unique: dict[Mapped, int] = {}
    for mapping, cycles in sorted(found, key=lambda item: item[1]):
        unique.setdefault(mapping, cycles)
    return list(unique.items())[:most]
