"""Which experts the tokens of a layer choose: in equal turns, at random, by a power law, or as counted.

Rows of the groups of a grouped product are the same with one choice a row."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from arch import reading
from arch.errors import InputError
from arch.near import hint

POWER_LAW = re.compile(r"power_law_(\d+(?:\.\d+)?)(_packed)?")
WORDS = ("uniform", "balanced", "power_law_1.2")
"""Distributions by name; the exponent of a power law is its own."""
WAYS = "uniform, balanced, power_law_A (or with _packed), counts with commas, or file:PATH that holds them"
FILE = "file:"
DRAWS = 31
"""Draws of a power law, of which the one nearest to their mean is taken."""
BLOCKS = (1, 16, 32, 64, 128)
"""Rows of an expert in a block, as kernels have them; draws are compared by their blocks of each size."""
SMALLEST, FEWEST, MOST = 1.0, 0.01, 2.0
"""Range of a power law: from 1 to 0.8 of the tokens; from 0.01 to 2 where there are fewer choices than experts."""

Ids = NDArray[np.int64]


def read(distribution: str, word: str) -> str:
    """A distribution as it is, or the counts of one that a file holds, with blanks, lines or commas between."""
    if not distribution.startswith(FILE):
        return distribution
    path = distribution.removeprefix(FILE)
    counts = reading.text(path, f"{word} distribution={distribution}").replace(",", " ").split()
    wrong = next((count for count in counts if not count.isdecimal()), None)
    if wrong is not None or not counts:
        raise InputError(f"{word} distribution={distribution}: {wrong or 'nothing'!r} is no count, such as 5,0,3,8")
    return ",".join(counts)


def check(
    distribution: str, tokens: int, experts: int, topk: int, word: str = "moe", rows: str = "tokens",
    groups: str = "experts",
) -> None:  # fmt: skip
    """InputError for a distribution that is none, or that tokens, experts and choices do not allow. word, rows, groups:
    the operator and its keys."""
    if _counted(distribution) is not None:
        counts = _counts_of(distribution)
        if len(counts) != experts:
            raise InputError(f"{word} distribution: {len(counts)} counts; one for each of {groups}={experts} is needed")
        if sum(counts) != tokens * topk or max(counts) > tokens:
            needed = f"{rows} x topk = {tokens * topk}" if topk > 1 else f"{rows} = {tokens}"
            raise InputError(
                f"{word} distribution: counts add up to {sum(counts)}, the largest is {max(counts)}; they must add up "
                f"to {needed}, each at most {rows}={tokens}"
            )
        return
    match = POWER_LAW.fullmatch(distribution)
    if distribution not in WORDS and (match is None or float(match[1]) in (0.0, 1.0)):
        raise InputError(
            f"{word} distribution={distribution}: uniform, balanced, power_law_A with an exponent such as 1.2, counts "
            f"of each of {groups} with commas between, or {FILE}PATH{hint(distribution, WORDS)}"
        )


@functools.lru_cache(maxsize=4)
def chosen(distribution: str, tokens: int, experts: int, topk: int, ep: int, seed: int) -> Ids:
    """Experts of each token, shape (tokens, topk), no expert twice in a row.

    ep: devices that share the experts. Of a power law the busiest device has number 0; of several seeded draws it is
    the one whose work there is nearest to the mean.
    """
    if distribution == "balanced":
        return _balanced(tokens, experts, topk)
    rng = np.random.Generator(np.random.PCG64(seed))
    if distribution == "uniform":
        return np.argpartition(rng.random((tokens, experts)), topk - 1, axis=1)[:, :topk].astype(np.int64)
    if _counted(distribution) is not None:
        return _assigned(np.array(_counts_of(distribution)), tokens, topk)
    match = POWER_LAW.fullmatch(distribution)
    assert match is not None, distribution
    settle = _settle_packed if match[2] else _settle
    draws = [_power_law(rng, float(match[1]), tokens, experts, topk, ep, settle) for _ in range(DRAWS)]
    return _assigned(draws[_nearest_to_mean([counts[: experts // ep] for counts in draws])], tokens, topk)


def _nearest_to_mean(draws: Sequence[Ids]) -> int:
    """The draw whose blocks are nearest to the mean of all: they decide what is read and what is multiplied."""
    work = np.array([[int((-(-loads // rows)).sum()) for rows in BLOCKS] for loads in draws])
    away = work / work.mean(axis=0).clip(min=1.0) - 1
    return int((away**2).sum(axis=1).argmin())


def _counted(distribution: str) -> re.Match[str] | None:
    return re.fullmatch(r"\d+(,\d+)*", distribution)


def _counts_of(distribution: str) -> list[int]:
    return [int(count) for count in distribution.split(",")]


def _balanced(tokens: int, experts: int, topk: int) -> Ids:
    """Tokens take turns: token t begins at expert t, and its choices lie evenly apart."""
    stride = -(-experts // topk)
    first = np.arange(tokens) if tokens >= stride else np.arange(tokens) * stride // tokens
    return np.asarray((first[:, None] + np.arange(topk) * experts // topk) % experts, dtype=np.int64)


def _power_law(
    rng: np.random.Generator, alpha: float, tokens: int, experts: int, topk: int, ep: int,
    settle: Callable[[Ids, int, int], None],
) -> Ids:  # fmt: skip
    """Tokens of each expert, those of the busiest device first."""
    low, high = (SMALLEST, 0.8 * tokens) if tokens * topk > experts else (FEWEST, MOST)
    low, high = min(low, high), max(low, high)
    power = 1 - alpha
    drawn = ((high**power - low**power) * rng.random(experts) + low**power) ** (1 / power)
    counts = np.rint(drawn / drawn.sum() * tokens * topk).astype(np.int64).clip(max=tokens)
    by_device = counts.reshape(ep, experts // ep)
    settle(by_device, tokens, tokens * topk)
    busiest = int(by_device.sum(axis=1).argmax())
    by_device[[0, busiest]] = by_device[[busiest, 0]]
    return by_device.reshape(-1)


def _settle(by_device: Ids, most: int, total: int) -> None:
    """Changes counts (devices, experts) by one until they add up to `total`: devices in turns, on each its smallest
    count grows, or its largest one shrinks; none beyond `most` or below 0."""
    left = total - int(by_device.sum())
    if left < 0:
        by_device[:] = most - by_device
        _settle(by_device, most, by_device.size * most - total)
        by_device[:] = most - by_device
        return
    while left:
        able = [counts for counts in by_device if int(counts.sum()) < most * len(counts)]
        for number, counts in enumerate(able):
            left -= _fill(counts, most, left // (len(able) - number) + (left % (len(able) - number) > 0))


def _settle_packed(by_device: Ids, most: int, total: int) -> None:
    """As `_settle`, the smallest counts first in the order of their numbers, whatever device they are on."""
    counts = by_device.reshape(-1)
    order = np.argsort(counts, kind="stable")
    while (left := total - int(counts.sum())) != 0:
        able = order[counts[order] < most] if left > 0 else order[counts[order] > 0]
        counts[able[: abs(left)]] += 1 if left > 0 else -1


def _fill(counts: Ids, most: int, share: int) -> int:
    """Adds `share` ones, each to the smallest count, as far as these stay below `most`; returns how many it added."""
    before = int(counts.sum())
    share = min(share, most * len(counts) - before)
    low, high = int(counts.min()), most
    while low < high:  # the highest level that the share reaches
        level = (low + high + 1) // 2
        low, high = (level, high) if int((level - counts).clip(min=0).sum()) <= share else (low, level - 1)
    counts[:] = np.maximum(counts, low)
    rest = before + share - int(counts.sum())
    counts[np.flatnonzero(counts == low)[:rest]] += 1
    return share


def _assigned(counts: Ids, tokens: int, topk: int) -> Ids:
    """Experts fill the first choice of all tokens, then the second one and so on, the most frequent first."""
    order = np.argsort(-counts, kind="stable")
    return np.repeat(order, counts[order]).reshape(topk, tokens).T.copy()
