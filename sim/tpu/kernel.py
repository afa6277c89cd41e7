"""The array cell by cell: every register of every processing element in every cycle, numbers and skew included.

Nothing here knows how long anything takes; times come out of the registers. Control starts a shift or a stream when the
registers that it needs are free. Shared with the unit-level model: nothing.

A stationary weight tile enters each column from above, the word of its last row first. A word carries the row at which
it stays; a cell passes on what belongs further down. Column c runs c cycles behind column 0, row r of the activations r
cycles behind row 0, so that sums meet on their way down. The first activation of a tile carries a flag: from it on, a
cell multiplies with the newly shifted weight.
"""

from typing import NamedTuple

from numpy.typing import NDArray

from sim.engine.jit import inner, kernel

# Registers of the control, one row.
CYCLE = 0
SHIFT_TILE = 1  # next tile to shift in
SHIFT_START = 2  # cycle at which the shift in progress began, -1: none
SHADOW_TILE = 3  # tile that waits in the second registers, -1: none
STREAM_TILE = 4  # tile whose passes enter, -1: none
STREAM_PASS = 5  # next pass to enter
NEXT_TILE = 6  # next tile to stream
EXPECTED = 7  # sums that the tiles streamed so far will give
LEFT = 8  # sums that have left the array
LAST = 9  # cycle after the last sum
MOVING = 10  # weight words on their way down
CONTROLS = 11

WEIGHTS_STAY, OUTPUTS_STAY = 0, 1


class PeState(NamedTuple):
    """Registers [rows, columns] and operands of one run.

    weights: [tiles, rows, columns]; where outputs stay [passes, 1, columns]. inputs: [passes of all tiles, rows]. Tile
    t streams passes first[t] to first[t + 1]. flag: the first pass of a tile; where outputs stay the last. dest, bits:
    by pass (where outputs stay by tile), accumulator row, and by how many bits its sums count more. column: by tile,
    first accumulator column. column_tile, row_tile: by lane, the tile that its edge feeds. out_pass, out_tile: by
    column, what leaves next.
    """

    control: NDArray
    act: NDArray
    act_valid: NDArray
    act_flag: NDArray
    total: NDArray
    weight: NDArray
    shadow: NDArray
    target: NDArray
    fresh: NDArray
    macs: NDArray
    shift_at: NDArray
    stream_at: NDArray
    column_tile: NDArray
    row_tile: NDArray
    out_pass: NDArray
    out_tile: NDArray
    weights: NDArray
    inputs: NDArray
    first: NDArray
    flag: NDArray
    dest: NDArray
    bits: NDArray
    column: NDArray
    accumulators: NDArray


@inner
def _control(s, overlap, stay):
    """Starts what can start in this cycle."""
    x = s.control
    t = x[CYCLE]
    rows, columns = s.act.shape
    tiles = s.first.size - 1
    empty = x[LEFT] == x[EXPECTED]
    if x[SHIFT_START] >= 0 and t - x[SHIFT_START] == rows:
        x[SHADOW_TILE] = x[SHIFT_TILE] - 1
        x[SHIFT_START] = -1
    if x[STREAM_TILE] >= 0 and x[STREAM_PASS] == s.first[x[STREAM_TILE] + 1]:
        x[STREAM_TILE] = -1
    if x[STREAM_TILE] < 0 and x[NEXT_TILE] < tiles:
        tile = x[NEXT_TILE]
        if stay == WEIGHTS_STAY:
            ready = x[SHADOW_TILE] == tile
        else:
            ready = overlap or empty
        if ready:
            x[STREAM_TILE] = tile
            x[STREAM_PASS] = s.first[tile]
            x[NEXT_TILE] = tile + 1
            x[SHADOW_TILE] = -1
            s.stream_at[tile] = t
            passes = s.first[tile + 1] - s.first[tile] if stay == WEIGHTS_STAY else rows
            x[EXPECTED] += passes * columns
            empty = False
    free = stay == WEIGHTS_STAY and x[SHIFT_START] < 0 and x[SHADOW_TILE] < 0
    if free and x[SHIFT_TILE] == x[NEXT_TILE] and x[SHIFT_TILE] < tiles and (overlap or empty):
        x[SHIFT_START] = t
        s.shift_at[x[SHIFT_TILE]] = t
        x[SHIFT_TILE] += 1
    if x[STREAM_TILE] >= 0:
        x[STREAM_PASS] += 1


@inner
def _shift_weights(s):
    """Words move down one row; each stays at its own."""
    x = s.control
    rows, columns = s.act.shape
    if x[MOVING] == 0 and s.column_tile[columns - 1] == x[SHIFT_TILE]:
        return
    moving = 0
    for r in range(rows - 1, 0, -1):
        for c in range(columns):
            arrives = s.fresh[r - 1, c] != 0 and s.target[r - 1, c] >= r
            s.fresh[r, c] = arrives
            if arrives:
                s.shadow[r, c] = s.shadow[r - 1, c]
                s.target[r, c] = s.target[r - 1, c]
                moving += 1
    for c in range(columns):
        s.fresh[0, c] = 0
        tile = s.column_tile[c]
        if tile < s.shift_at.size and s.shift_at[tile] >= 0:
            word = x[CYCLE] - s.shift_at[tile] - c
            if word >= 0:
                s.fresh[0, c] = 1
                s.target[0, c] = rows - 1 - word
                s.shadow[0, c] = s.weights[tile, rows - 1 - word, c]
                moving += 1
                if word == rows - 1:
                    s.column_tile[c] = tile + 1
    x[MOVING] = moving


@inner(inline=True)
def _entering(s, edge, lane):
    """The pass that enters at one lane of an edge in this cycle, -1: none; edge: the tile that each lane feeds."""
    tile = edge[lane]
    if tile >= s.stream_at.size or s.stream_at[tile] < 0:
        return -1
    number = s.first[tile] + s.control[CYCLE] - s.stream_at[tile] - lane
    if number < s.first[tile]:
        return -1
    if number == s.first[tile + 1] - 1:
        edge[lane] = tile + 1
    return number


@inner
def _multiply_weights_stay(s):
    """One cycle of all cells: activations move right, sums down. From the far corner on, so that neighbours are old."""
    rows, columns = s.act.shape
    x = s.control
    for r in range(rows - 1, -1, -1):
        for c in range(columns - 1, 0, -1):
            valid = s.act_valid[r, c - 1]
            s.act_valid[r, c] = valid
            if valid:
                s.act[r, c] = s.act[r, c - 1]
                s.act_flag[r, c] = s.act_flag[r, c - 1]
        entering = _entering(s, s.row_tile, r)
        s.act_valid[r, 0] = entering >= 0
        if entering >= 0:
            s.act[r, 0] = s.inputs[entering, r]
            s.act_flag[r, 0] = s.flag[entering]
        for c in range(columns):
            if s.act_valid[r, c]:
                if s.act_flag[r, c]:
                    s.weight[r, c] = s.shadow[r, c]
                above = s.total[r - 1, c] if r > 0 else 0
                s.total[r, c] = above + s.act[r, c] * s.weight[r, c]
                s.macs[r, c] += 1
    for c in range(columns):
        if s.act_valid[rows - 1, c]:
            done, tile = s.out_pass[c], s.out_tile[c]
            s.accumulators[s.dest[done], s.column[tile] + c] += s.total[rows - 1, c] << s.bits[done]
            s.out_pass[c] = done + 1
            if done + 1 == s.first[tile + 1]:
                s.out_tile[c] = tile + 1
            x[LEFT] += 1
            x[LAST] = x[CYCLE] + 1


@inner
def _multiply_outputs_stay(s):
    """One cycle of all cells: activations move right, weights down; a sum leaves with the flag of its last pass."""
    rows, columns = s.act.shape
    x = s.control
    for r in range(rows - 1, -1, -1):
        for c in range(columns - 1, 0, -1):
            s.act_valid[r, c] = s.act_valid[r, c - 1]
            s.act[r, c] = s.act[r, c - 1]
            s.act_flag[r, c] = s.act_flag[r, c - 1]
        entering = _entering(s, s.row_tile, r)
        s.act_valid[r, 0] = entering >= 0
        if entering >= 0:
            s.act[r, 0] = s.inputs[entering, r]
            s.act_flag[r, 0] = s.flag[entering]
        for c in range(columns):
            if r > 0:
                s.weight[r, c] = s.weight[r - 1, c]
            else:
                falling = _entering(s, s.column_tile, c)
                if falling >= 0:
                    s.weight[0, c] = s.weights[falling, 0, c]
            if s.act_valid[r, c]:
                s.total[r, c] += s.act[r, c] * s.weight[r, c]
                s.macs[r, c] += 1
                if s.act_flag[r, c]:
                    tile = s.target[r, c]
                    s.accumulators[s.dest[tile] + r, s.column[tile] + c] += s.total[r, c]
                    s.total[r, c] = 0
                    s.target[r, c] = tile + 1
                    x[LEFT] += 1
                    x[LAST] = x[CYCLE] + 1


@kernel
def advance(s, overlap, stay, cycles):
    """Runs up to `cycles` cycles; how many were run: fewer when everything has left the array."""
    x = s.control
    for n in range(cycles):
        if x[NEXT_TILE] == s.first.size - 1 and x[LEFT] == x[EXPECTED]:
            return n
        _control(s, overlap, stay)
        if stay == WEIGHTS_STAY:
            _multiply_weights_stay(s)
            _shift_weights(s)
        else:
            _multiply_outputs_stay(s)
        x[CYCLE] += 1
    return cycles
