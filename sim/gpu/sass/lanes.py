"""What instructions compute, for the lanes of a warp at once: integers, predicates, addresses; compiled.

Arguments: `x`, the program with what its warps hold (`tables.SassProgram`); `st`, the engine's state; `w`, a warp;
`row`, its instruction; `mask`, the lanes that take part. Operands are fetched to `x.operands`, 0 to 2; results are in
rows 3 (lower or only word) and 4 (upper word). Words are 0 to 2**32 - 1. A uniform instruction is one of one lane.
"""

import numpy as np

from sim.engine.jit import inner
from sim.gpu.sass.tables import (
    ALL_LANES,
    LANES,
    RANK_SHIFT,
    WINDOW,
    Cell,
    Change,
    Launched,
    Meaning,
    Mode,
    Scalar,
    Source,
    Special,
)
from sim.gpu.units.cta import Cta
from sim.gpu.units.warp import Warp

_WORD = 0xFFFFFFFF
_SIGN = 0x80000000
_LOW, _HIGH = 3, 4  # rows of results


@inner(inline=True)
def lanes_of(x, w, predicate, negated):
    """Mask of the lanes for which a predicate holds."""
    mask = x.scalars[w, Scalar.PREDICATE + predicate]
    return mask ^ ALL_LANES if negated != 0 else mask


@inner
def fetch(x, w, row, cell, k, n):
    """Brings an operand to row `k` of `x.operands`, for `n` lanes."""
    kind, value, change = x.code[row, cell], x.code[row, cell + 1], x.code[row, cell + 2]
    operands = x.operands
    if kind == Source.REGISTER:
        for lane in range(LANES):
            operands[k, lane] = np.int64(x.registers[w, value, lane])
        if change & Change.WIDE != 0:
            for lane in range(LANES):
                operands[k, lane] |= np.int64(x.registers[w, value + 1, lane]) << 32
    else:
        if kind == Source.UNIFORM:
            number = x.scalars[w, Scalar.UNIFORM + value]
            if change & Change.WIDE != 0:
                number |= x.scalars[w, Scalar.UNIFORM + value + 1] << 32
        else:
            number = value
        if n == 1:
            operands[k, 0] = number
        else:
            for lane in range(LANES):
                operands[k, lane] = number
    if change & Change.INVERT != 0:
        for lane in range(n):
            operands[k, lane] ^= _WORD
    return change


@inner
def signed(operands, k, n):
    """Makes signed numbers of the words of an operand."""
    for lane in range(n):
        operands[k, lane] = (operands[k, lane] ^ _SIGN) - _SIGN


@inner
def negate(operands, k, n):
    """Negates an operand."""
    for lane in range(n):
        operands[k, lane] = -operands[k, lane]


@inner
def compute(p, x, st, w, row, mask):
    """Executes the instruction of a row for the lanes of a mask and writes its results."""
    code = x.code
    meaning = code[row, Cell.MEANING]
    n = 1 if code[row, Cell.UNIFORM] != 0 else LANES
    low, high = 0, 0  # masks of lanes: predicates written
    wide = False
    if meaning == Meaning.LOP3:
        low = _logic(x, w, row, n)
    elif meaning == Meaning.VOTE:
        low = _vote(x, w, row, mask)
    elif meaning <= Meaning.IMAD_HI:
        wide, low, high = _integer(x, w, row, meaning, n)
    elif meaning <= Meaning.BMSK:
        low = _shift(x, w, row, meaning, n)
    elif meaning <= Meaning.SEL:
        _select(x, w, row, meaning, n)
    elif meaning <= Meaning.PLOP3 or meaning == Meaning.FSETP:
        low, high = _compare(x, w, row, meaning, n)
    elif meaning <= Meaning.CS2R:
        wide = _special(p, x, st, w, row, n)
    elif meaning <= Meaning.FFMA:
        _floating(x, w, row, meaning, n)
    elif meaning == Meaning.FCHK:
        low = 0
    elif meaning == Meaning.ELECT:
        low = mask & -mask
    elif meaning == Meaning.QSPC:
        low = _space(p, x, st, w, row)
    elif meaning == Meaning.LOOKUP:
        wide = _look_up(x, w, row, n)
    elif meaning >= Meaning.P2R:
        _pack(x, w, row, meaning, mask)
    else:
        low = _across(x, w, row, meaning, n, mask)
    _write(x, w, row, mask, n, wide)
    write_predicate(x, w, code[row, Cell.PREDICATE0], low, mask, n)
    write_predicate(x, w, code[row, Cell.PREDICATE1], high, mask, n)


@inner
def _look_up(x, w, row, n):
    """LDC of a place that a register says: words of a bank of constants; whether two are written."""
    fetch(x, w, row, Cell.A, 0, n)
    wide = x.code[row, Cell.MODE] & Mode.WIDE != 0
    first, end = x.launch[Launched.CONSTANTS] + x.code[row, Cell.OFFSET], x.code[row, Cell.COUNT]
    for lane in range(n):
        place = (x.operands[0, lane] & _WORD ^ _SIGN) - _SIGN + x.code[row, Cell.OPERATION]
        for k in range(2 if wide else 1):
            word, at = 0, place + 4 * k
            if at >= 0 and at + 4 <= end:
                for byte in range(4):
                    word |= int(x.data[first + at + byte]) << (8 * byte)
            x.operands[_LOW + k, lane] = word
    return wide


@inner
def _space(p, x, st, w, row):
    """QSPC: lanes whose generic addresses lie in the CTA's own shared memory, or in that of another one."""
    fetch(x, w, row, Cell.A, 0, LANES)
    found = 0
    for lane in range(LANES):
        address = x.operands[0, lane]
        if address >> 32 == WINDOW:
            own = (address & _WORD) >> RANK_SHIFT == st.ctas[st.warps[w, Warp.CTA], Cta.RANK]
            found |= (1 if own != (x.code[row, Cell.OPERATION] != 0) else 0) << lane
    return found


@inner
def _write(x, w, row, mask, n, wide):
    """Writes the results of a row to its registers."""
    dst = x.code[row, Cell.DST]
    if dst < 0 or mask == 0:
        return
    if n == 1:
        x.scalars[w, Scalar.UNIFORM + dst] = x.operands[_LOW, 0] & _WORD
        if wide:
            x.scalars[w, Scalar.UNIFORM + dst + 1] = x.operands[_HIGH, 0] & _WORD
        return
    for k in range(2 if wide else 1):
        if mask == ALL_LANES:
            for lane in range(LANES):
                x.registers[w, dst + k, lane] = np.uint32(x.operands[_LOW + k, lane] & _WORD)
        else:
            for lane in range(LANES):
                if (mask >> lane) & 1:
                    x.registers[w, dst + k, lane] = np.uint32(x.operands[_LOW + k, lane] & _WORD)


@inner(inline=True)
def write_predicate(x, w, predicate, value, mask, n):
    """Writes a predicate for the lanes of a mask; for a uniform one, of all lanes."""
    if predicate >= 0:
        at = Scalar.PREDICATE + predicate
        if n == 1:
            if mask != 0:
                x.scalars[w, at] = ALL_LANES if value & 1 else 0
        else:
            x.scalars[w, at] = (x.scalars[w, at] & ~mask) | (value & mask)


# ---- integers


@inner
def _integer(x, w, row, meaning, n):
    """MOV, IADD3, IMAD: (whether the result has two words, carries)."""
    code, operands = x.code, x.operands
    mode = code[row, Cell.MODE]
    a = fetch(x, w, row, Cell.A, 0, n)
    if meaning == Meaning.MOV:
        for lane in range(n):
            operands[_LOW, lane] = operands[0, lane] & _WORD
            operands[_HIGH, lane] = (operands[0, lane] >> 32) & _WORD
        return mode & Mode.WIDE != 0, 0, 0
    b = fetch(x, w, row, Cell.B, 1, n)
    c = fetch(x, w, row, Cell.C, 2, n)
    if meaning == Meaning.IADD3:
        return _add(x, w, row, a, b, c, n)
    if mode & Mode.SIGNED != 0 and meaning != Meaning.IMAD:
        signed(operands, 0, n)
        signed(operands, 1, n)
    if (a ^ b) & Change.NEGATE != 0:
        negate(operands, 0, n)
    if c & Change.NEGATE != 0:
        negate(operands, 2, n)
    for lane in range(n):
        operands[_LOW, lane] = operands[0, lane] * operands[1, lane] + operands[2, lane]
    if meaning == Meaning.IMAD:
        if mode & Mode.EXTENDED != 0:
            _add_carry(x, w, row, Cell.INPUT0, n)
        return False, 0, 0
    if meaning == Meaning.IMAD_HI:
        for lane in range(n):
            operands[_LOW, lane] = operands[_LOW, lane] >> 32
        return False, 0, 0
    for lane in range(n):
        operands[_HIGH, lane] = operands[_LOW, lane] >> 32
    return True, 0, 0


@inner
def _add_carry(x, w, row, cell, n):
    """Adds a predicate to the result."""
    carry = lanes_of(x, w, x.code[row, cell], x.code[row, cell + 1])
    for lane in range(n):
        x.operands[_LOW, lane] += (carry >> lane) & 1


@inner
def _complement(operands, k, change, n):
    """Subtraction is the addition of the complement and a carry, as carries that are written count it."""
    if change & Change.NEGATE != 0:
        for lane in range(n):
            operands[k, lane] = 0x100000000 - operands[k, lane]


@inner
def _add(x, w, row, a, b, c, n):
    """IADD3: three words and carries, (False, carry of one, carry of two)."""
    code, operands = x.code, x.operands
    _complement(operands, 0, a, n)
    _complement(operands, 1, b, n)
    _complement(operands, 2, c, n)
    for lane in range(n):
        operands[_LOW, lane] = operands[0, lane] + operands[1, lane] + operands[2, lane]
    if code[row, Cell.MODE] & Mode.EXTENDED != 0:
        _add_carry(x, w, row, Cell.INPUT0, n)
        if code[row, Cell.INPUT1] != 7:
            _add_carry(x, w, row, Cell.INPUT1, n)
    once, twice = 0, 0
    if code[row, Cell.PREDICATE0] >= 0 or code[row, Cell.PREDICATE1] >= 0:
        for lane in range(n):
            carries = operands[_LOW, lane] >> 32
            once |= (1 if carries >= 1 else 0) << lane
            twice |= (1 if carries >= 2 else 0) << lane
    return False, once, twice


@inner
def _select(x, w, row, meaning, n):
    """PRMT, IABS, minimum and maximum, SEL."""
    code, operands = x.code, x.operands
    mode = code[row, Cell.MODE]
    a = fetch(x, w, row, Cell.A, 0, n)
    b = fetch(x, w, row, Cell.B, 1, n)
    fetch(x, w, row, Cell.C, 2, n)
    if meaning == Meaning.PRMT:
        for lane in range(n):
            both = operands[2, lane] << 32 | operands[0, lane]
            chosen = operands[1, lane]
            word = 0
            for k in range(4):
                which = (chosen >> (4 * k)) & 15
                byte = (both >> (8 * (which & 7))) & 255
                if which & 8:
                    byte = 255 if byte & 128 else 0
                word |= byte << (8 * k)
            operands[_LOW, lane] = word
    elif meaning == Meaning.IABS:
        signed(operands, 0, n)
        for lane in range(n):
            operands[_LOW, lane] = abs(operands[0, lane])
    elif meaning == Meaning.IMNMX or meaning == Meaning.SEL:
        first = lanes_of(x, w, code[row, Cell.INPUT0], code[row, Cell.INPUT0 + 1])
        if meaning == Meaning.SEL:
            for lane in range(n):
                operands[_LOW, lane] = operands[0, lane] if (first >> lane) & 1 else operands[1, lane]
            return
        if mode & Mode.SIGNED != 0:
            signed(operands, 0, n)
            signed(operands, 1, n)
        if a & Change.NEGATE != 0:
            negate(operands, 0, n)
        if b & Change.NEGATE != 0:
            negate(operands, 1, n)
        for lane in range(n):
            least, most = min(operands[0, lane], operands[1, lane]), max(operands[0, lane], operands[1, lane])
            operands[_LOW, lane] = least if (first >> lane) & 1 else most


@inner
def _logic(x, w, row, n):
    """LOP3 of the operands that are there, by its table; the mask of lanes whose result is not 0, or the predicate."""
    operands, table = x.operands, x.code[row, Cell.OPERATION]
    fetch(x, w, row, Cell.A, 0, n)
    fetch(x, w, row, Cell.B, 1, n)
    fetch(x, w, row, Cell.C, 2, n)
    for lane in range(n):
        operands[_LOW, lane] = 0
    for term in range(8):
        if (table >> term) & 1:
            a = 0 if term & 4 else _WORD
            b = 0 if term & 2 else _WORD
            c = 0 if term & 1 else _WORD
            for lane in range(n):
                operands[_LOW, lane] |= (operands[0, lane] ^ a) & (operands[1, lane] ^ b) & (operands[2, lane] ^ c)
    if x.code[row, Cell.PREDICATE0] < 0:
        return 0
    found = lanes_of(x, w, x.code[row, Cell.INPUT0], x.code[row, Cell.INPUT0 + 1])
    for lane in range(n):
        found |= (1 if operands[_LOW, lane] != 0 else 0) << lane
    return found


# ---- shifts


@inner
def _shift(x, w, row, meaning, n):
    """LEA, SHF, SGXT, BMSK; the carry of a LEA."""
    operands = x.operands
    a = fetch(x, w, row, Cell.A, 0, n)
    b = fetch(x, w, row, Cell.B, 1, n)
    c = fetch(x, w, row, Cell.C, 2, n)
    mode = x.code[row, Cell.MODE]
    if meaning == Meaning.LEA or meaning == Meaning.LEA_HI:
        return _scaled_add(x, w, row, meaning, a, b, c, n)
    if meaning == Meaning.SHF:
        _funnel(operands, mode, n)
    elif meaning == Meaning.SGXT:
        for lane in range(n):
            bits = min(operands[1, lane], 32)
            word = operands[0, lane] & ((1 << bits) - 1)
            if mode & Mode.SIGNED != 0 and bits > 0 and (word >> (bits - 1)) & 1:
                word -= 1 << bits
            operands[_LOW, lane] = word
    else:  # BMSK: bits of a mask from a to a + b
        for lane in range(n):
            first, count = min(operands[0, lane], 32), min(operands[1, lane], 32)
            operands[_LOW, lane] = ((1 << count) - 1) << first
    return 0


@inner
def _funnel(operands, mode, n):
    """SHF: the upper or lower word of a pair of words, shifted."""
    most = 63 if mode & Mode.WIDE != 0 else 32
    for lane in range(n):
        count = operands[1, lane] & (most if mode & Mode.WIDE != 0 else 31) if mode & Mode.WRAPS != 0 else 0
        if mode & Mode.WRAPS == 0:
            count = min(operands[1, lane], most)
        both = operands[2, lane] << 32 | operands[0, lane]
        if mode & Mode.LEFT != 0:
            both = both << count
        elif mode & Mode.SIGNED != 0:
            both = both >> count
        elif count > 0:  # of unsigned numbers
            both = (both >> count) & ((1 << (64 - count)) - 1)
        operands[_LOW, lane] = both >> 32 if mode & Mode.HIGH != 0 else both


@inner
def _scaled_add(x, w, row, meaning, a, b, c, n):
    """LEA: a word (LEA_HI: the upper one of two), shifted, plus another; returns the carries."""
    code, operands = x.code, x.operands
    mode, count = code[row, Cell.MODE], code[row, Cell.OPERATION] & 31
    if meaning == Meaning.LEA:
        if a & Change.NEGATE != 0:
            negate(operands, 0, n)
        for lane in range(n):
            operands[0, lane] = (operands[0, lane] << count) & _WORD
    else:
        if mode & Mode.SIGN != 0:
            signed(operands, 0, n)
        else:
            for lane in range(n):
                operands[0, lane] |= operands[2, lane] << 32
        if a & Change.NEGATE != 0:
            negate(operands, 0, n)
        for lane in range(n):
            operands[0, lane] = ((operands[0, lane] << count) >> 32) & _WORD
    _complement(operands, 1, b, n)
    for lane in range(n):
        operands[_LOW, lane] = operands[0, lane] + operands[1, lane]
    if mode & Mode.EXTENDED != 0:
        _add_carry(x, w, row, Cell.INPUT0, n)
    carries = 0
    for lane in range(n):
        carries |= (1 if operands[_LOW, lane] >> 32 != 0 else 0) << lane
    return carries


# ---- predicates


@inner
def _compare(x, w, row, meaning, n):
    """ISETP, FSETP, PLOP3: masks of the lanes for which the first and the second predicate are set."""
    code, operands = x.code, x.operands
    if meaning == Meaning.PLOP3:
        return _predicate_logic(x, w, row, code[row, Cell.OPERATION] & 255), _predicate_logic(
            x, w, row, code[row, Cell.OPERATION] >> 8
        )
    mode, operation = code[row, Cell.MODE], code[row, Cell.OPERATION]
    a = fetch(x, w, row, Cell.A, 0, n)
    b = fetch(x, w, row, Cell.B, 1, n)
    if meaning == Meaning.FSETP:
        holds = _compare_floats(x, operation, mode, a, b, n)
    else:
        if mode & Mode.SIGNED != 0:
            signed(operands, 0, n)
            signed(operands, 1, n)
        if a & Change.NEGATE != 0:
            negate(operands, 0, n)
        if b & Change.NEGATE != 0:
            negate(operands, 1, n)
        less, equal = 0, 0
        for lane in range(n):
            less |= (1 if operands[0, lane] < operands[1, lane] else 0) << lane
            equal |= (1 if operands[0, lane] == operands[1, lane] else 0) << lane
        more = ALL_LANES & ~(less | equal)
        lower = lanes_of(x, w, code[row, Cell.INPUT1], code[row, Cell.INPUT1 + 1])
        if mode & Mode.EXTENDED == 0:
            lower = ALL_LANES if operation & 2 else 0
        if operation == 5:  # unequal, of lower halves also
            holds = less | more | (equal & lower if mode & Mode.EXTENDED != 0 else 0)
        else:
            holds = (less if operation & 1 else 0) | (more if operation & 4 else 0) | (equal & lower)
    other = lanes_of(x, w, code[row, Cell.INPUT0], code[row, Cell.INPUT0 + 1])
    if mode & Mode.OR != 0:
        return holds | other, (holds ^ ALL_LANES) | other
    if mode & Mode.XOR != 0:
        return holds ^ other, holds ^ ALL_LANES ^ other
    return holds & other, (holds ^ ALL_LANES) & other


@inner
def _compare_floats(x, operation, mode, a, b, n):
    """Mask of the lanes for which a comparison of fp32 numbers holds."""
    holds = 0
    for lane in range(n):
        first, second = _number(x, 0, lane, a), _number(x, 1, lane, b)
        yes = (operation & 1 != 0 and first < second) or (operation & 2 != 0 and first == second)
        yes = yes or (operation & 4 != 0 and first > second)
        yes = yes or (mode & Mode.UNORDERED != 0 and (first != first or second != second))
        holds |= (1 if yes else 0) << lane
    return holds


@inner
def _predicate_logic(x, w, row, table):
    """PLOP3: a function of three predicates by its table."""
    code = x.code
    a = lanes_of(x, w, code[row, Cell.INPUT0], code[row, Cell.INPUT0 + 1])
    b = lanes_of(x, w, code[row, Cell.INPUT1], code[row, Cell.INPUT1 + 1])
    c = lanes_of(x, w, code[row, Cell.INPUT2], code[row, Cell.INPUT2 + 1])
    found = 0
    for term in range(8):
        if (table >> term) & 1:
            found |= (
                (a if term & 4 else a ^ ALL_LANES)
                & (b if term & 2 else b ^ ALL_LANES)
                & (c if term & 1 else c ^ ALL_LANES)
            )
    return found


@inner
def _vote(x, w, row, mask):
    """VOTE: the lanes of a mask for which a predicate holds; the predicate that says any, all or all the same."""
    code = x.code
    yes = lanes_of(x, w, code[row, Cell.INPUT0], code[row, Cell.INPUT0 + 1]) & mask
    for lane in range(LANES):
        x.operands[_LOW, lane] = yes
    operation = code[row, Cell.OPERATION]
    if operation == 0:
        return ALL_LANES if yes != 0 else 0
    if operation == 1:
        return ALL_LANES if yes == mask else 0
    return ALL_LANES if yes == 0 or yes == mask else 0


@inner
def _pack(x, w, row, meaning, mask):
    """P2R: predicates as bits of a register, the other bits being those of an operand; R2P: back."""
    packed, scalars = x.code[row, Cell.OPERATION], x.scalars
    fetch(x, w, row, Cell.A, 0, LANES)
    if meaning == Meaning.R2P:
        for predicate in range(7):
            if (packed >> predicate) & 1:
                bits = 0
                for lane in range(LANES):
                    bits |= ((x.operands[0, lane] >> predicate) & 1) << lane
                write_predicate(x, w, predicate, bits, mask, LANES)
        return
    for lane in range(LANES):
        word = x.operands[0, lane] & ~packed
        for predicate in range(7):
            if (packed >> predicate) & 1:
                word |= ((scalars[w, Scalar.PREDICATE + predicate] >> lane) & 1) << predicate
        x.operands[_LOW, lane] = word


# ---- special registers and other lanes


@inner
def _special(p, x, st, w, row, n):
    """S2R and CS2R; whether two words are written."""
    which, operands, launch = x.code[row, Cell.OPERATION], x.operands, x.launch
    slot = st.warps[w, Warp.CTA]
    for lane in range(n):
        operands[_HIGH, lane] = 0
        operands[_LOW, lane] = 0
    first = st.warps[w, Warp.NUMBER] * LANES
    if which == Special.TID_X:
        for lane in range(n):
            operands[_LOW, lane] = (first + lane) % launch[Launched.BLOCK_X]
    elif which == Special.TID_Y:
        for lane in range(n):
            operands[_LOW, lane] = (first + lane) // launch[Launched.BLOCK_X] % launch[Launched.BLOCK_Y]
    elif which == Special.TID_Z:
        for lane in range(n):
            operands[_LOW, lane] = (first + lane) // (launch[Launched.BLOCK_X] * launch[Launched.BLOCK_Y])
    elif which == Special.LANEID:
        for lane in range(n):
            operands[_LOW, lane] = lane
    elif which >= Special.EQ_MASK:  # of lanes with the same number, lower ones, or the others
        for lane in range(n):
            bit = 1 << lane
            lower = bit - 1 if which >= Special.LT_MASK else bit
            lower |= bit if which == Special.LE_MASK or which == Special.GT_MASK else 0
            operands[_LOW, lane] = lower if which <= Special.LE_MASK else lower ^ ALL_LANES
    elif which != Special.ZERO:
        value = st.ctas[slot, Cta.RANK]
        if which == Special.CTAID_X:
            value = st.ctas[slot, Cta.X]
        elif which == Special.CTAID_Y:
            value = st.ctas[slot, Cta.Y]
        elif which == Special.CTAID_Z:
            value = st.ctas[slot, Cta.Z]
        elif which == Special.WINDOW:
            value = WINDOW
        for lane in range(n):
            operands[_LOW, lane] = value
    return x.code[row, Cell.MODE] & Mode.WIDE != 0


@inner
def _across(x, w, row, meaning, n, mask):
    """R2UR, SHFL, POPC, FLO; the predicate of a SHFL."""
    code, operands = x.code, x.operands
    fetch(x, w, row, Cell.A, 0, LANES)
    if meaning == Meaning.R2UR:
        lane = 0
        while lane < LANES - 1 and (mask >> lane) & 1 == 0:
            lane += 1
        operands[_LOW, 0] = operands[0, lane]
        return 0
    if meaning == Meaning.POPC or meaning == Meaning.FLO:
        for lane in range(n):
            word = operands[0, lane] & _WORD
            count, last = 0, _WORD
            for bit in range(32):
                if (word >> bit) & 1:
                    count += 1
                    last = bit
            operands[_LOW, lane] = count if meaning == Meaning.POPC else last
        return 0
    fetch(x, w, row, Cell.B, 1, LANES)
    fetch(x, w, row, Cell.C, 2, LANES)
    operation = code[row, Cell.OPERATION]
    inside = 0
    for lane in range(LANES):
        control = operands[2, lane]
        segment = (control >> 8) & 31
        most = (lane & segment) | (control & 31 & ~segment)
        by = operands[1, lane] & 31
        other = lane ^ by
        if operation == 0:
            other = (lane & segment) | (by & ~segment)
        elif operation == 1:
            other = lane - by
        elif operation == 2:
            other = lane + by
        there = other >= most if operation == 1 else other <= most
        operands[_LOW, lane] = operands[0, other if there else lane]
        inside |= (1 if there else 0) << lane
    return inside


# ---- floating point, as far as integers come of it


@inner(inline=True)
def _number(x, k, lane, change):
    """An fp32 operand."""
    word = x.operands[k, lane]
    x.words[0] = word if word < _SIGN else word - 0x100000000
    number = x.floats[0]
    if change & Change.ABSOLUTE != 0:
        number = abs(number)
    return -number if change & Change.NEGATE != 0 else number


@inner(inline=True)
def _put(x, lane, number):
    """An fp32 result."""
    x.floats[1] = number
    x.operands[_LOW, lane] = x.words[1]


@inner
def _floating(x, w, row, meaning, n):
    """Conversions, reciprocals, sums and products."""
    mode = x.code[row, Cell.MODE]
    a = fetch(x, w, row, Cell.A, 0, n)
    b = fetch(x, w, row, Cell.B, 1, n)
    c = fetch(x, w, row, Cell.C, 2, n)
    if meaning == Meaning.I2F:
        if mode & Mode.SIGNED != 0:
            signed(x.operands, 0, n)
        for lane in range(n):
            value = x.operands[0, lane]
            x.floats[1] = value
            if mode & Mode.UP != 0 and x.floats[1] < value * 1.0:
                x.words[1] += 1 if value > 0 else -1
            x.operands[_LOW, lane] = x.words[1]
    elif meaning == Meaning.F2I:
        for lane in range(n):
            number = _number(x, 0, lane, a) * 1.0
            most = 2147483647.0 if mode & Mode.SIGNED != 0 else 4294967295.0
            least = -2147483648.0 if mode & Mode.SIGNED != 0 else 0.0
            number = min(max(number, least), most) if number == number else 0.0
            x.operands[_LOW, lane] = int(number if mode & Mode.TRUNCATES != 0 else np.rint(number))
    elif meaning == Meaning.RCP:
        for lane in range(n):
            _put(x, lane, 1.0 / _number(x, 0, lane, a))
    else:
        for lane in range(n):
            first, second = _number(x, 0, lane, a) * 1.0, _number(x, 1, lane, b) * 1.0
            if meaning == Meaning.FADD:
                _put(x, lane, first + second)
            elif meaning == Meaning.FMUL:
                _put(x, lane, first * second)
            else:
                _put(x, lane, first * second + _number(x, 2, lane, c) * 1.0)
