"""The tiles of a program as text, for people."""

from __future__ import annotations

from sim.gemmini.program import DEPTH, FILTER_COLUMNS, FILTER_ROWS, STARTS, STORES, TILE_WORDS, Program

MOST = 200
"""Tiles that are shown."""


def listing(program: Program) -> str:
    """One line a tile: its extents, where its operands lie, whether sums begin or leave with it."""
    shown = [i for i in range(len(TILE_WORDS)) if program.convolution or i not in (FILTER_ROWS, FILTER_COLUMNS)]
    shown = [i for i in shown if i <= DEPTH or TILE_WORDS[i] in ("x", "w", "y")]
    head = [f"{program.name} {program.schedule}: {len(program.tiles):,} tiles"]
    names = "  ".join(f"{TILE_WORDS[i]:>10}" for i in shown)
    lines = [f"{'tile':>7}  {names}"]
    for number, tile in enumerate(program.tiles[:MOST]):
        values = "  ".join(f"{int(tile[i]):>10}" for i in shown)
        ends = " begins" * int(tile[STARTS]) + " leaves" * int(tile[STORES])
        lines.append(f"{number:>7}  {values}{ends}")
    left = len(program.tiles) - MOST
    return "\n".join([*head, *lines, *([f"... {left:,} more"] if left > 0 else [])]) + "\n"
