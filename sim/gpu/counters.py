"""What the SMs of a GPU count. Lowering says which counter an instruction raises, the energy model what it costs."""

from enum import IntEnum


class Counter(IntEnum):
    """What the SMs count; the memory system has its own counters."""

    INSTRUCTIONS = 0
    MACS_TENSOR = 1
    MACS_VECTOR = 2
    SHARED_READ_BYTES = 3
    SHARED_WRITE_BYTES = 4
    SHARED_CONFLICT_TICKS = 5
    L1_READ_SECTORS = 6
    L1_HIT_SECTORS = 7
    PORT_READ_BYTES = 8
    PORT_RECEIVE_BYTES = 9
    PORT_WRITE_BYTES = 10
    TMA_BOXES = 11
    TENSOR_TICKS = 12
    EVENTS = 13
    LINES = 14
    CTAS = 15
    INST_FMA = 16
    INST_ALU = 17
    INST_FP16 = 18
    INST_MUFU = 19
    INST_TENSOR = 20
    INST_SHARED = 21
    INST_GLOBAL = 22
    INST_OTHER = 23
    GLOBAL_READ_BYTES = 24
    GLOBAL_WRITE_BYTES = 25
    # Time of each vector pipe, in the order of `sim.gpu.lower.tables.Pipe`, summed over sub-cores; mixed instructions
    # count too.
    FMA_TICKS = 26
    ALU_TICKS = 27
    HALF_TICKS = 28
    MUFU_TICKS = 29
    SHARED_TICKS = 30  # that the arrays of shared memory are booked for, summed over SMs
    INST_FP64 = 31
    WIDTH = 32
