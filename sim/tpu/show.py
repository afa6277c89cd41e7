"""What every cell of the array holds in every cycle, as text; `sim.app.report.animation` draws the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from arch.errors import InputError
from arch.tpu import TpuSpec
from sim.tpu.pe import Cells, Matrix, PeArray

LARGEST_SIDE = 16
MOST_CYCLES = 500


@dataclass(frozen=True)
class ArrayRun:
    """A product on the array, cell by cell."""

    title: str
    frames: tuple[Cells, ...]
    product: Matrix
    macs: Matrix

    def __str__(self) -> str:
        """Each cycle as a grid, then what came out."""
        return "\n".join([self.title, *self._lines()])

    def _lines(self) -> Iterator[str]:
        width = max(len(_cell(frame, r, c)) for frame in self.frames for r, c in np.ndindex(frame.act.shape))
        for frame in self.frames:
            yield f"cycle {frame.cycle}: {int(frame.valid.sum())} of {frame.valid.size} cells multiply"
            for r in range(frame.act.shape[0]):
                line = "  ".join(_cell(frame, r, c).ljust(width) for c in range(frame.act.shape[1]))
                yield "  " + line.rstrip()
        cycles, cells = len(self.frames), self.macs.size
        share = 100 * int(self.macs.sum()) / (cycles * cells)
        yield f"{cycles} cycles; the {cells} cells multiply in {share:.1f} % of them"
        yield "cell: activation*weight=sum, or [weight] at rest, (weight) on its way, . empty"
        yield "product:"
        yield from ("  " + " ".join(str(int(value)) for value in row) for row in self.product)


def array_run(title: str, spec: TpuSpec, a: Matrix, b: Matrix) -> ArrayRun:
    """a b on the array of a machine; InputError where the picture would be too large to read."""
    array = spec.array
    for name, side in (("array.rows", array.rows), ("array.columns", array.columns)):
        if side > LARGEST_SIDE:
            raise InputError(f"show-array: {name} = {side} is too large to show; --set {name}={LARGEST_SIDE}")
    cells = PeArray(a, b, array.rows, array.columns, array.dataflow, array.overlap_weights)
    frames = []
    for frame in cells.steps():
        frames.append(frame)
        if len(frames) > MOST_CYCLES:
            raise InputError(
                f"show-array: {title} takes more than {MOST_CYCLES} cycles; a smaller problem can be shown"
            )
    result = cells.run()
    return ArrayRun(title, tuple(frames), result.product.astype(np.int64), result.macs)


def _cell(frame: Cells, r: int, c: int) -> str:
    if frame.valid[r, c]:
        return f"{frame.act[r, c]}*{frame.weight[r, c]}={frame.total[r, c]}"
    if frame.moving[r, c]:
        return f"({frame.shadow[r, c]})"
    return f"[{frame.shadow[r, c]}]" if frame.loaded[r, c] else "."
