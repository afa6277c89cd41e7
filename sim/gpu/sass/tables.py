"""The format of a lowered SASS kernel: what `sim.gpu.sass.lower` writes and `loop` reads."""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

LANES = 32
ALL_LANES = (1 << LANES) - 1
SCOREBOARDS = 6
WAITING = 4
"""Accesses that wait in a sub-core for its address unit: arXiv 2503.20481, section 5 (RTX A6000) finds that five issue
back to back, one of which the unit works on."""
PATTERNS = 8
"""Of addresses in shared memory that are kept for an instruction, a power of two."""
LOCAL_BYTES = 1 << 16
"""Local memory of a lane; its stack grows down from there."""
RANK_SHIFT = 24
"""An address in the shared memory of a cluster: the rank of a CTA above, the place in its shared memory below."""
WINDOW = 0x7F00
"""Upper word of a generic address in the shared memory of the cluster: what SR_SWINHI gives, above all arrays."""
LOCAL_WINDOW = 0x7E00
"""Upper word of a generic address in a lane's local memory."""
STACK = 16
"""Diverged paths of a warp that wait for their turn, at most."""


class Unit(IntEnum):
    """Who executes an instruction."""

    MATH = 0  # a pipe of the sub-core
    UNIFORM = 1  # the uniform datapath, beside the pipes
    SPECIAL = 2  # special registers and constants: a latency of their own
    SHUFFLE = 3
    LDS = 4
    STS = 5
    LDSM = 6
    STSM = 7
    LDG = 8
    STG = 9
    RED = 10
    LDGSTS = 11
    COMMIT = 12  # closes a group of LDGSTS
    DEPBAR = 13  # waits for such groups, or for a scoreboard
    BARRIER = 14
    ARRIVE = 15
    FENCE = 16
    NOTE = 17  # an issue slot, nothing else
    BRANCH = 18
    BSSY = 19
    BSYNC = 20
    EXIT = 21
    HGMMA = 22
    GWAIT = 23  # waits for groups of HGMMA
    CALL = 24  # of a function, or a return from one: stops the run
    UTMALDG = 25  # the TMA loads a box
    UTMASTG = 26
    FLUSH = 27  # closes a group of the TMA's stores
    SYNCS = 28  # mbarriers
    CLUSTER_ARRIVE = 29  # at the barrier of the cluster
    CLUSTER_WAIT = 30
    MEMBAR = 31  # waits for the warp's stores to device memory
    WARPSYNC = 32  # all lanes of the warp meet
    LD = 33  # by generic addresses: of device memory, or of a CTA of the cluster
    ST = 34
    STAS = 35  # a store to a CTA of the cluster that completes bytes of an mbarrier beside it
    ATOMG = 36  # an atomic of device memory that returns what was there
    ATOMS = 37  # of shared memory
    ATOM = 38  # by generic addresses
    REDAS = 39  # a reduction as STAS
    UBLKCP = 40  # the TMA copies bytes that lie side by side
    UBLKRED = 41  # as UBLKCP, what is there is changed by them
    UTMAREDG = 42  # as UTMASTG, what is there is changed by the box
    SHARED_MATH = 43  # a pipe that the sub-cores of an SM share
    JUMP = 44  # to where a register says: a table of branches, a return
    BREAK = 45  # lanes leave a convergence barrier


class Meaning(IntEnum):
    """What an instruction computes for each lane."""

    NONE = 0
    MOV = 1
    IADD3 = 2
    IMAD = 3
    IMAD_WIDE = 4
    IMAD_HI = 5
    LEA = 6
    LEA_HI = 7
    LOP3 = 8
    SHF = 9
    SGXT = 10
    BMSK = 11
    PRMT = 12
    IABS = 13
    IMNMX = 14
    SEL = 15
    ISETP = 16
    PLOP3 = 17
    S2R = 18
    CS2R = 19
    VOTE = 20
    I2F = 21
    F2I = 22
    RCP = 23
    FADD = 24
    FMUL = 25
    FFMA = 26
    FSETP = 27
    HFMA2 = 28
    POPC = 29
    FLO = 30
    R2UR = 31
    SHFL = 32
    P2R = 33
    R2P = 34
    FCHK = 35
    ELECT = 36
    QSPC = 37
    LOOKUP = 38


class Source(IntEnum):
    """Where an operand comes from."""

    NUMBER = 0  # an immediate, a constant of this launch
    REGISTER = 1
    UNIFORM = 2


class Change(IntEnum):
    """What happens to an operand before it is used, as bits."""

    NEGATE = 1
    INVERT = 2
    ABSOLUTE = 4
    WIDE = 8  # 64 bits: a pair of registers


class Cell(IntEnum):
    """Columns of the code table, a row an instruction: eight to a host cache line, those first that most touch."""

    UNIT = 0
    MEANING = 1  # NONE also where nothing depends on what it computes
    PIPE = 2  # -1 none
    INTERVAL = 3  # ticks that it holds its pipe
    LATENCY = 4  # ticks to its result
    STALL = 5  # ticks to the warp's next instruction
    WAIT = 6  # mask of scoreboards
    GIVES_WAY = 7
    GUARD = 8  # predicate
    GUARD_NOT = 9  # 1: negated
    WRITE = 10  # scoreboard of its result, -1 none
    READ = 11  # scoreboard of its operands, -1 none
    COUNTER = 12
    MACS = 13
    MACS_COUNTER = 14
    ASKED = 15  # three columns: registers that it reads, asked of the host's caches ahead; the first is -1 without any
    A = 18  # three columns an operand: Source, register or number, Change bits
    B = 21
    C = 24
    OPERATION = 27  # what the meaning leaves open: a table of logic, a comparison, a special register
    MODE = 28  # flags of the meaning
    DST = 29  # register, -1 none
    UNIFORM = 30  # 1: it computes once, for uniform registers
    PREDICATE0 = 31  # predicates written, -1 none
    PREDICATE1 = 32
    INPUT0 = 33  # two columns a predicate read: predicate, 1: negated
    INPUT1 = 35
    INPUT2 = 37
    TARGET = 39  # row that a branch goes to
    ADDRESS = 40  # register of an address, -1 none
    ADDRESS_WIDE = 41  # 1: 64 bits
    ADDRESS_UNIFORM = 42  # uniform register that is added, -1 none
    ADDRESS_UNIFORM_WIDE = 43
    OFFSET = 44
    ADDRESS_SHIFT = 45  # bits by which the register of an address is shifted: R2.X16
    BYTES = 46  # a lane accesses
    READ_LATENCY = 47  # ticks until its operands have been read
    MATRICES = 48  # of LDSM, STSM
    CACHED = 49  # 1: looks in the L1
    LOCAL = 50  # 1: an access of local memory
    KEEPS = 51  # 1: a load, on whose values addresses or branches depend
    SOURCE = 52  # shared address of LDGSTS: register, -1 none
    SOURCE_OFFSET = 53
    SOURCE_SHIFT = 54
    SOURCE_UNIFORM = 55  # uniform register of a shared address of LDGSTS, -1 none
    COUNT = 56  # groups left, warps expected; of SYNCS: arrivals, -1 as many as its register says
    SHARED = 57  # HGMMA: ticks of the shared-memory data path
    COMMITS = 58  # HGMMA: 1: closes a group
    DIMS = 59  # of a box
    RANKS = 60  # uniform register of a multicast: ranks that receive the box, from bit 16 on; -1 none
    FETCHES = 61  # of a load: what the L2 fetches, as `L1Figure.FILLS`
    NETWORK = 62  # ticks that a sector takes of the network between the SMs of a cluster
    OWN_LATENCY = 63  # ticks of an access by a generic address that is of the CTA's own shared memory; of UBLKCP and
    # UBLKRED those of the network between the SMs of a cluster
    WIDTH = 64


ASKED = 3
"""Registers of an instruction that are asked for ahead, at most."""


class Mode(IntEnum):
    """Flags of `Cell.MODE`, as bits."""

    SIGNED = 1
    EXTENDED = 2  # takes carries; of comparisons: the result of the lower halves
    HIGH = 4  # the upper half
    LEFT = 8
    WIDE = 16  # 64-bit operand
    WRAPS = 32  # shift counts
    OR = 64  # of comparisons: `or` with the predicate, else `and`
    XOR = 128
    SIGN = 256  # LEA: the upper half is the sign of the lower
    TRUNCATES = 512
    UP = 1024  # rounds up
    UNORDERED = 2048


class Way(IntEnum):
    """What decides whether a branch is taken, `Cell.OPERATION`."""

    ASKED = 0  # its predicates
    TOGETHER = 1  # that all lanes of the warp run
    APART = 2  # that they do not


class Atomic(IntEnum):
    """What an atomic does, `Cell.OPERATION`."""

    ADD = 0
    MIN = 1
    MAX = 2
    AND = 3
    OR = 4
    XOR = 5
    EXCH = 6
    CAS = 7
    INC = 8  # to 0 behind the operand
    DEC = 9  # to the operand behind 0
    SPIN = 10  # CAS that gives 1 where it was made
    OTHER = 11  # of floating-point numbers


class Bulk(IntEnum):
    """Between what UBLKCP and UBLKRED move bytes, `Cell.OPERATION`."""

    TO_DEVICE = 0
    FROM_DEVICE = 1
    IN_CLUSTER = 2  # from shared memory to that of a CTA of the cluster


class Sync(IntEnum):
    """What a SYNCS does, `Cell.OPERATION`."""

    SETUP = 0
    ARRIVE = 1  # COUNT: arrivals; BYTES 1: and expects as many bytes as its register says
    AWAIT = 2  # COUNT 1: until the phase is over
    NOTE = 3


class Meeting(IntEnum):
    """Columns of a cluster's row: its barrier."""

    ARRIVED = 0  # warps, in this phase
    LATEST = 1  # arrival
    PHASE = 2  # phases completed
    DONE = 3  # when the last one was
    WIDTH = 4


class Map(IntEnum):
    """Columns of a tensor map."""

    ADDRESS = 0  # of the map
    BASE = 1  # of the tensor
    ELEMENT = 2  # bytes
    DIMENSION = 3  # of each, the innermost first: extent, stride in bytes, extent of the box
    WIDTH = 18


class Special(IntEnum):
    """Special registers."""

    TID_X = 0
    TID_Y = 1
    TID_Z = 2
    CTAID_X = 3
    CTAID_Y = 4
    CTAID_Z = 5
    LANEID = 6
    ZERO = 7
    RANK = 8
    WARP = 9
    WINDOW = 10
    EQ_MASK = 11
    LT_MASK = 12
    LE_MASK = 13
    GT_MASK = 14
    GE_MASK = 15


class Scalar(IntEnum):
    """Columns of a warp's row of scalars: eight to a host cache line, those first that most instructions touch."""

    PREDICATE = 0  # eight masks of lanes, the last of all lanes
    UNIFORM_PREDICATE = 8  # eight: 0 or all lanes
    ACTIVE = 16
    EXITED = 17
    DEPTH = 18  # of the stack of paths
    BARRIER_WAIT = 19  # named barrier that it waits at, plus one
    PARKED = 20  # another unit wakes it: tick from which it waits, plus one; -1 at its end
    PARKED_REASON = 21
    CURSOR = 22  # its place in the trace that it follows
    CLUSTER_PHASE = 23  # of the cluster's barrier, in which it arrived there last
    MET = 24  # lanes that wait for all others of the warp
    UNIFORM = 32  # 64 registers
    BARRIER = 96  # 16 convergence barriers: lanes that take part
    WAITING = 112  # 16: lanes that have come
    STACK_PC = 128
    STACK_MASK = 144
    SYNC_ROW = 160  # 16: where lanes wait at a convergence barrier
    MET_ROW = 176  # where those wait that have MET
    WIDTH = 177


class Turn(IntEnum):
    """Columns of a warp's place in its sub-core."""

    READY = 0  # tick from which its next instruction may issue
    PIPE = 1  # of that
    REASON = 2  # why it waits until then
    GROUPS = 3  # one more than the groups of products that may be pending then, 0 without a wait for them
    WIDTH = 4


class Fault(IntEnum):
    """Columns of the row that says why a run was stopped."""

    KIND = 0  # 0 none
    ROW = 1
    LANE = 2
    ADDRESS = 3
    CTA = 4
    WARP = 5
    WIDTH = 8


class FaultKind(IntEnum):
    """Why a run was stopped."""

    NONE = 0
    OUTSIDE = 1  # of every array
    MISALIGNED = 2
    SHARED = 3  # outside of the CTA's shared memory
    DIVERGENCE = 4  # paths that wait for each other
    CALL = 5
    MAP = 6  # no tensor map at an address
    CONTENT = 8  # of an array, which nobody has given
    MBARRIER = 7  # none has been set up at an address, or too many have
    ENDED = 9  # the CTA whose shared memory is accessed


class SassProgram(NamedTuple):
    """A lowered SASS kernel and what its warps hold."""

    code: np.ndarray  # (rows, Cell.WIDTH) int64
    warp_entry: np.ndarray  # (warps a CTA, 2): -1, number
    barrier_arrivals: np.ndarray  # of mbarriers, in the order in which they are set up
    mbarriers: np.ndarray  # their shared addresses, -1 before
    maps: np.ndarray  # (tensor maps, Map.WIDTH)
    launch: np.ndarray  # by Launched
    ranges: np.ndarray  # (arrays, 3): first byte, byte behind the last, place of its content in `data`, -1 without
    data: np.ndarray  # uint8: contents of arrays
    registers: np.ndarray  # (warps of the chip, registers, 32) uint32
    scalars: np.ndarray  # (warps of the chip, Scalar.WIDTH) int64
    turns: np.ndarray  # (sub-cores, warps, Turn.WIDTH) int64
    queues: np.ndarray  # (sub-cores, WAITING + 1): ticks at which accesses leave the queue; the oldest's place
    clusters: np.ndarray  # (clusters, Meeting.WIDTH) of a kernel that uses their barrier
    operands: np.ndarray  # (5, 32) int64: operands of the instruction in progress and its results
    floats: np.ndarray  # (4,) float32
    words: np.ndarray  # the same as int32
    addresses: np.ndarray  # (1, 32) int64
    lines: np.ndarray  # (3, 64): lines of the access in progress, their sectors, those written whole
    covered: np.ndarray  # (64, 4): bytes of each sector that a store writes
    spent: np.ndarray  # (rows, reasons): ticks of warps by the instruction that they wait to issue
    issued: np.ndarray  # (rows, 2): how often, active lanes
    patterns: np.ndarray  # (rows * PATTERNS, 34): of shared accesses: lanes, wavefronts, distances of addresses
    fault: np.ndarray  # by Fault
    trace: np.ndarray  # (instructions, Traced.WIDTH) of all warps; empty where they execute the code
    trace_first: np.ndarray  # (CTAs * warps + 1): where each warp's begin
    trace_lanes: np.ndarray  # (accesses, 32): addresses


class Traced(IntEnum):
    """Columns of a trace that warps follow."""

    ROW = 0
    MASK = 1
    ACCESS = 2  # place of its addresses, -1 none
    WIDTH = 3


class Launched(IntEnum):
    """Columns of `SassProgram.launch`."""

    BLOCK_X = 0
    BLOCK_Y = 1
    BLOCK_Z = 2
    THREADS = 3
    SHARED_BEGIN = 4
    SHARED_END = 5
    BANKS = 6
    FIRST_SUB_CORE = 7  # component number
    PRODUCTS = 8  # 1: there are asynchronous products
    LOCAL_BEGIN = 9  # of all local memory
    FOLLOWS = 10  # 1: the trace is one of this simulator, which has both addresses of LDGSTS, one behind the other
    CONSTANTS = 11  # place of the banks of constants in `data`
    WIDTH = 12
