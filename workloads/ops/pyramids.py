"""Layer sizes of a convolutional network of which only totals are published: all that fit, found by search.

What is known of CNN1 (Jouppi et al., ISCA 2017, table 1): 72 convolutions, 13 pools, 4 dense layers, 100 million
weights, batch 32, 1750 multiply-accumulates a weight byte. What is taken: 3 x 3 windows, images that halve from stage
to stage while channels double, four dense layers of one width. Free are the image's size, the number of stages, the
convolutions of each, the channels of the first and the width of the dense layers. No measured counter takes part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

CONVOLUTIONS, BATCH, WEIGHTS, INTENSITY = 72, 32, 100e6, 1750
"""As published of CNN1; intensity at that batch."""

SIZES = (16, 32, 64)
STAGES = (3, 4)
CHANNELS = range(16, 257, 4)
WIDTHS = (1024, 2048)
GRAIN = 3
"""Convolutions of a stage are tried in steps of it."""

INPUT_CHANNELS = 3


@dataclass(frozen=True)
class Pyramid:
    """One set of sizes. counts: convolutions of each stage; width: outputs of the dense layers."""

    size: int
    counts: tuple[int, ...]
    channels: int
    width: int

    @property
    def stages(self) -> list[tuple[int, int, int]]:
        """Size, channels and convolutions of each stage."""
        return [(self.size >> i, self.channels << i, count) for i, count in enumerate(self.counts)]

    @property
    def weights(self) -> int:
        """Of all layers."""
        return sum(each for each, _ in self._layers())

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one image."""
        return sum(each * positions for each, positions in self._layers())

    @property
    def fits(self) -> bool:
        """Whether weights and intensity are those published, within 3 and 2 %."""
        intensity = BATCH * self.macs / self.weights
        return abs(self.weights / WEIGHTS - 1) < 0.03 and abs(intensity / INTENSITY - 1) < 0.02

    @property
    def unevenness(self) -> int:
        """How far the stages are from having as many convolutions each."""
        return max(self.counts) - min(self.counts)

    def _layers(self) -> Iterator[tuple[int, int]]:
        """Weights and output positions of each layer."""
        before = INPUT_CHANNELS
        for size, channels, count in self.stages:
            yield 9 * before * channels, size * size
            yield 9 * channels * channels * (count - 1), size * size
            before = channels
        last = self.size >> len(self.counts)
        yield last * last * before * self.width, 1
        yield 3 * self.width * self.width, 1


def pyramids() -> list[Pyramid]:
    """All sets that fit, those with the most even stages first."""
    found = []
    for stages in STAGES:
        steps = itertools.product(range(GRAIN, CONVOLUTIONS, GRAIN), repeat=stages - 1)
        counts = [(*some, CONVOLUTIONS - sum(some)) for some in steps if sum(some) < CONVOLUTIONS]
        for size, some, width in itertools.product(SIZES, counts, WIDTHS):
            found += [p for p in _of_weights(size, some, width) if p.fits]
    return sorted(found, key=lambda p: (p.unevenness, p.size, p.counts, p.channels, p.width))


def _of_weights(size: int, counts: tuple[int, ...], width: int) -> Iterator[Pyramid]:
    """Sets near the published weights, which grow with the square of the channels."""
    each = 9 * sum(count << 2 * i for i, count in enumerate(counts))
    near = (max(0.0, WEIGHTS - 3 * width * width) / each) ** 0.5
    for channels in CHANNELS:
        if near - 24 < channels < near + 8:
            yield Pyramid(size, counts, channels, width)
