"""Values of atomics: what each makes of the bytes at its address, lane by lane."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from arch.errors import InputError
from sim.gpu.sass.floats import bf16, of_bf16
from sim.gpu.sass.forms import Form
from sim.gpu.sass.lower import operation_of
from sim.gpu.sass.tables import Atomic

_FLOATS = {"F32": "<f", "F64": "<d", "F16x2": "<ee", "F16": "<e"}


def changed(form: Form, old: bytes, given: bytes, other: bytes) -> bytes:
    """What an atomic makes of bytes. given: its operand; other: what CAS writes where it finds that. InputError for a
    number format whose sums are not computed."""
    operation = operation_of(form)
    if operation is Atomic.OTHER:
        return _sum(form, old, given)
    signed = any(part in ("S32", "S64") for part in form.parts)
    a, b = (int.from_bytes(one, "little", signed=signed) for one in (old, given))
    found = {
        Atomic.ADD: a + b,
        Atomic.MIN: min(a, b),
        Atomic.MAX: max(a, b),
        Atomic.AND: a & b,
        Atomic.OR: a | b,
        Atomic.XOR: a ^ b,
        Atomic.EXCH: b,
        Atomic.INC: 0 if a >= b else a + 1,
        Atomic.DEC: b if a == 0 or a > b else a - 1,
    }.get(operation)
    if found is None:  # CAS and SPIN
        return other if old == given else old
    return (found & ((1 << 8 * len(old)) - 1)).to_bytes(len(old), "little")


def reduced(form: Form, old: bytes, given: bytes) -> bytes:
    """What UBLKRED makes of bytes, element by element."""
    wide, narrow = ("S64", "U64", "F64", "64"), ("F16", "BF16")
    size = 8 if any(part in wide for part in form.parts) else 2 if any(part in narrow for part in form.parts) else 4
    parts = [slice(at, at + size) for at in range(0, len(old), size)]
    return b"".join(changed(form, old[part], given[part], b"") for part in parts)


def answered(form: Form, old: bytes, given: bytes) -> bytes:
    """What an atomic returns: what was there; of a compare and swap that spins whether it was made."""
    if "SPIN" in form.parts:
        return int(old == given).to_bytes(len(old), "little")
    return old


def _sum(form: Form, old: bytes, given: bytes) -> bytes:
    if any(part.startswith("BF16") for part in form.parts) and "ADD" in form.parts:
        pairs = (of_bf16(np.frombuffer(x, dtype=np.uint16)) for x in (old, given))
        return bf16(next(pairs) + next(pairs)).tobytes()
    layout = next((_FLOATS[part] for part in form.parts if part in _FLOATS), None)
    if layout is None or "ADD" not in form.parts or struct.calcsize(layout) != len(old):
        raise InputError(f"{form.instruction.place}: {form.instruction}: its values are not computed")
    numbers: Sequence[float] = [a + b for a, b in zip(*(struct.unpack(layout, x) for x in (old, given)), strict=True)]
    return struct.pack(layout, *numbers)
