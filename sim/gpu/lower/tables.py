"""The format of a lowered kernel: what lowering writes and the engine reads.

Tables are 2-D int64 arrays; the enums here name their columns. Nothing here knows how the engine keeps time.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np


class Kind(IntEnum):
    """What the engine does for a row of the lowered program."""

    LOOP = 0
    NEXT = 1
    ASSIGN = 2
    EXIT = 3
    RUN = 4  # fixed latency instructions, mma.sync included
    SHARED = 5  # lds, sts, ldmatrix, stmatrix, those of other SMs
    LDG = 6
    STG = 7
    RED = 8
    CP_ASYNC = 9
    CP_COMMIT = 10
    CP_WAIT = 11
    CP_ARRIVE = 12
    TMA_LOAD = 13
    TMA_STORE = 14
    TMA_REDUCE = 15
    BULK_COMMIT = 16
    BULK_WAIT = 17
    BULK_WAIT_READ = 18
    MBAR_WAIT = 19
    MBAR_EXPECT = 20
    MBAR_ARRIVE = 21
    BAR_SYNC = 22
    CLUSTER_SYNC = 23
    NEXT_TILE = 24
    FLAG_ADD = 25
    FLAG_WAIT = 26
    WGMMA = 27
    WGMMA_COMMIT = 28
    WGMMA_WAIT = 29
    NOTE = 30  # takes an issue slot, nothing else
    FENCE = 31  # waits for the warp's shared-memory stores
    BAR_ARRIVE = 32
    CLUSTER_ARRIVE = 33
    CLUSTER_WAIT = 34
    # of tensor memory and launch control; those that move or multiply first
    TCGEN05_MMA = 35
    TCGEN05_CP = 36
    TCGEN05_LD = 37
    TCGEN05_ST = 38
    TRY_CANCEL = 39
    TCGEN05_COMMIT = 40
    TCGEN05_WAIT_LD = 41
    TCGEN05_WAIT_ST = 42
    TCGEN05_ALLOC = 43
    TCGEN05_DEALLOC = 44
    QUERY_CANCEL = 45


class Pipe(IntEnum):
    """Pipes that a row names. The vector pipes come first."""

    FMA = 0
    ALU = 1
    HALF = 2
    XU = 3
    TENSOR = 4
    LSU = 5
    FP64 = 6
    FP64_SHARED = 7  # of chips with few such lanes: kept with an SM's first sub-core


N_VECTOR_PIPES = 4


class Col(IntEnum):
    """Columns of the code table. Expressions are indices into the expression table."""

    KIND = 0
    OP = 1  # number of the op in the kernel's enumeration, for the event log
    COUNT = 2  # warp instructions of the opcode itself; NEXT: steps of a program's length that a trip counts as
    PIPE = 3
    INTERVAL = 4  # ticks one instruction holds its pipe
    LATENCY = 5  # ticks to the first result
    WAIT_MASK = 6  # bits of the warp's ready slots to wait for: scoreboards, tiles' last elements, their first ones
    SLOT = 7  # scoreboard that the op signals, -1 none
    ISSUE = 8  # issue slots, those of the mix included
    STAGE = 9  # expression: stage of an mbarrier array, number of a named barrier or flag
    ARG = 10  # expression: phase, bytes, flag value, loop trips, assigned value
    MASK = 11  # expression: multicast mask, -1 none
    BAR = 12  # first mbarrier of the array
    BOX = 13  # global box, -1 none
    SHARED = 14  # ticks of the shared-memory data path an instruction (RUN: of all loads of the op)
    MIX_PIPE0 = 15
    MIX_TICKS0 = 16
    MIX_PIPE1 = 17
    MIX_TICKS1 = 18
    JUMP = 19  # target row
    VAR = 20  # variable written
    VAR2 = 21  # hidden trip counter of a loop
    VALUE = 22  # constant of the op: groups that a wait leaves in flight, warps that a barrier expects
    BYTES = 23
    START = 24  # LOOP: expression of the loop variable's first value
    STEP = 25  # NEXT: expression of what is added to it
    MACS = 26  # multiply-accumulates of one instruction
    MACS_COUNTER = 27  # RUN: counter of these
    COUNTER = 28  # counter of the opcode's instructions
    BYTES_COUNTER = 29  # SHARED: counter of its bytes; tells loads from stores
    CONFLICTS = 30  # ticks of SHARED that bank conflicts cause
    TILE = 31  # register tile written, -1 none
    SPREAD = 32  # 1: the ops that follow issue between the instructions of this one
    LOADS = 33  # shared-memory loads between the instructions of a RUN
    REGISTERS = 34  # ticks for which all instructions of the row keep the tensor core from the register file
    NETWORK = 35  # SHARED: ticks of the SM-to-SM network an instruction
    BESIDE = 36  # RUN: ticks that all instructions of the row take of the register file while wgmma run
    WIDTH = 37


class Box(IntEnum):
    """Columns of the box table: a box of a global tensor as addresses."""

    BASE = 0  # byte address of the tensor
    ELEMENT = 1  # bytes
    ROW_DIM = 2  # dimension whose extent gives rows, -1 for one row
    COL_DIM = 3  # contiguous dimension
    DIMS = 4
    EXPR0 = 5  # four groups of (offset expression, stride in bytes, shape, extent)
    WIDTH = 21


class Operator(IntEnum):
    """Expression bytecode: postfix, two columns (operator, argument)."""

    CONST = 0
    VARIABLE = 1  # column of the warp's row
    ADD = 2
    SUB = 3
    MUL = 4
    DIV = 5
    MOD = 6
    XOR = 7
    AND = 8
    SHL = 9
    LT = 10
    EQ = 11
    MIN = 12
    MAX = 13
    TABLE = 14  # first word of a constant table, indexed by the value on top
    WITHIN = 15  # row of the table of limits, which the value on top must keep to


class Affine(IntEnum):
    """Columns of the table of affine expressions: a constant and up to three columns of the warp's row with factors.

    One step with a constant may follow, such as the stage of a ring of buffers takes, and behind it a sum.
    """

    TERMS = 0  # -1: the expression is not of this form, its bytecode is run
    CONST = 1
    THEN = 2  # the step: `Operator.DIV`, MOD or TABLE, 0 none
    BY = 3  # its constant
    PLUS = 4  # what is added behind it
    COLUMN0 = 5
    FACTOR0 = 6
    WIDTH = 11


MAX_TERMS = (Affine.WIDTH - Affine.COLUMN0) // 2


class WarpVariables(IntEnum):
    """Columns of a warp's row in the engine that expressions read."""

    CTA_X = 56
    CTA_Y = 57
    CTA_Z = 58
    CLUSTER_RANK = 59
    ROLE_WARP = 60  # its number in its role
    FIRST = 64  # of N_VARS loop and counter variables


N_VARS = 32
N_SCOREBOARDS = 8
N_TILES = 12  # register tiles a role


class Scratch(IntEnum):
    """Columns of the scratch row that expressions are evaluated in, behind their operands (`MOST_DEPTH`)."""

    FAULT = 256  # one more than the limit that a value has first left, 0 none
    VALUE = 257  # that value
    WIDTH = 264


class GpuProgram(NamedTuple):
    """A lowered kernel."""

    code: np.ndarray  # (rows, Col.WIDTH) int64
    expr: np.ndarray  # (words, 2) int64
    expr_at: np.ndarray  # (expressions + 1,) int64
    affine: np.ndarray  # (expressions, Affine.WIDTH) int64
    tables: np.ndarray  # (n,) int64: constant tables, one after the other
    limits: np.ndarray  # (limits, 2) int64: smallest and largest value allowed
    boxes: np.ndarray  # (boxes, Box.WIDTH) int64
    warp_entry: np.ndarray  # (warps a CTA, 2) int64: first row, number in its role
    barrier_arrivals: np.ndarray  # (mbarriers a CTA,) int64
