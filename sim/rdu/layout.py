"""Columns of the engine's tables; an enum has the name of what a row is about."""

from enum import IntEnum

UNIT_BYTES = 512
"""Bytes of one request to external memory; neighbouring units lie in different channels."""


class Kind(IntEnum):
    """What a stage does when it fires."""

    COMPUTE = 0
    LOAD = 1
    STORE = 2
    GATHER = 3
    COLLECTIVE = 4


class Stages(IntEnum):
    """A stage. Figures first, then state; times in ticks."""

    KIND = 0
    FIRINGS = 1
    INTERVAL = 2
    LATENCY = 3
    STARTS = 4  # where its row of `starts` begins
    INPUTS = 5  # its range in `ports`
    INPUTS_END = 6
    OUTPUTS = 7
    OUTPUTS_END = 8
    PLACE = 9  # 0: HBM, 1: DDR
    JOBS = 10  # its row of `jobs`: the range of segments of each firing
    WINDOW = 11  # units of memory in flight
    RING = 12  # where its ring of completions begins
    GENERATOR = 13  # first of its address generators
    GENERATORS = 14
    FIRED = 15
    FREE = 16  # the next firing may begin
    PARKED = 17  # channel that it waits for, or -1
    BEGUN = 18  # tick at which the firing in progress began, or -1
    SEGMENT = 19
    OFFSET = 20  # bytes done of the segment's row
    UNITS = 21  # requests so far
    READY = 22  # last completion of the firing in progress
    MOVED = 23  # ticks that the firing's bytes keep its generators
    ROW = 24  # rows done of the segment
    WAITED = 25  # of the last wait: its reason, and how many ticks at its end were the network's
    LATE = 26
    STEPS = 27  # vectors of a firing; 0: whole tokens come and go
    STEP = 28  # vectors done of the firing in progress
    PACE = 29  # ticks of all of them, where none has to wait
    PORTS = 30  # and those of them before the network's
    BYTES = 31  # of the transfer in progress, all and done
    BYTES_DONE = 32
    HELD_INPUT = 33  # ticks inside the firing in progress that vectors were waited for, room for them, and memory's
    HELD_ROOM = 34
    HELD_MEMORY = 35
    HELD_SINCE = 36  # tick at which a transfer was parked for vectors or room, or -1


class Channels(IntEnum):
    """A channel."""

    PRODUCER = 0
    CONSUMER = 1
    DEPTH = 2  # tokens; of a channel of vectors, vectors, and so are the four counts below
    EMIT_LEVEL = 3  # a piece is emitted when a counter below this level moves on
    TOKEN_LEVEL = 4  # a token is complete then
    READ_LEVEL = 5  # the reader takes the next token then
    READY_LATENCY = 6  # from the producer's last result to the reader's first
    HOP_LATENCY = 7  # the part of it that is the network's
    CREDIT_LATENCY = 8
    READ = 9  # ticks of the buffer's port a firing of the reader
    WRITE = 10  # and a piece of the producer
    READ_PRIVATE = 11  # ticks of the busiest link that no other channel uses
    WRITE_PRIVATE = 12
    SLOTS = 13
    READ_LINKS = 14  # range in `links` of those that others use too
    READ_LINKS_END = 15
    WRITE_LINKS = 16
    WRITE_LINKS_END = 17
    WAITS_TOKEN = 18  # 0 only in tests: the reader does not wait
    WAITS_ROOM = 19  # 0 only in tests: the producer does not wait
    ACQUIRED = 20
    COMMITTED = 21
    TAKEN = 22
    RELEASED = 23
    OPEN = 24
    LOOKUPS = 25  # where the port's ticks of each firing of the reader begin, or -1: READ for all
    DONE_LATENCY = 26  # as READY_LATENCY, of the control token that announces a token
    DONE_LINKS = 27  # ranges in `links`: shared control links of that token and of the credit that goes back
    DONE_LINKS_END = 28
    CREDIT_LINKS = 29
    CREDIT_LINKS_END = 30
    VECTORS = 31  # of a token that comes vector by vector; 0: it comes as a whole
    TRAIL = 32  # ticks by which its vectors leave the producer later than what they are made of came


class Network(IntEnum):
    """The mesh's networks."""

    VECTOR = 0
    SCALAR = 1
    CONTROL = 2


class Reason(IntEnum):
    """Why a stage's tick passed: a closed list. `reconfiguration` and `idle` are added outside the engine."""

    BUSY = 0
    NO_INPUT = 1
    NO_ROOM = 2
    MEMORY = 3
    NETWORK = 4
    RECONFIGURATION = 5
    IDLE = 6


class Log(IntEnum):
    """A row of the event log: a firing, and what the time before it and in it went into."""

    STAGE = 0
    FIRING = 1
    START = 2
    END = 3
    COMMIT = 4
    WAITED = 5  # reason of the wait between the firing before and START
    LATE = 6  # ticks at the end of that wait that were the network's
    WORKED = 7  # ticks from START in which it worked (a collective: in which links did)
    MEMORY = 8  # ticks after those that buffers or memory took
    HELD_INPUT = 9  # and ticks between its vectors without input, or room; what is left until END is the network's
    HELD_ROOM = 10


class Segments(IntEnum):
    """A segment of memory: rows of as many bytes each, a stride apart."""

    ADDRESS = 0
    BYTES = 1
    ROWS = 2
    STRIDE = 3


class Links(IntEnum):
    """A shared link that a transfer uses."""

    LINK = 0  # its calendar
    TICKS = 1  # that the transfer holds it
    OTHERS = 2  # flows that use it too
    NETWORK = 3


class Scalars(IntEnum):
    """Scalars of the engine."""

    HEAP = 0
    LOGGED = 1
    EVENTS = 2
    DONE = 3
    END = 4
    UNITS = 5
    LINK_WAIT = 6  # ticks that transfers waited for links of the vector network; then of scalar and control
    SCALAR_WAIT = 7
    CONTROL_WAIT = 8
