"""Which instructions have to be computed: those that branches, masks of lanes and addresses depend on.

The rest only takes time. Found backwards over the flow of control: what is needed before an instruction is what is
needed behind it, less what it writes for certain, plus what it reads if anything that it writes is needed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from arch.errors import InputError
from sim.gpu.sass.forms import ASYNCHRONOUS, CONTROL, MEMORY, Form, names
from sim.gpu.sass.operands import Kind
from sim.gpu.sass.tables import Meaning, Unit
from sim.gpu.sass.text import INSTRUCTION_BYTES, Function

_OF_ARRAYS = (Unit.LDG, Unit.LD, Unit.ATOMG, Unit.ATOM)
"""What reads device memory, local memory beside it."""
_AT_L2 = (Unit.RED, Unit.ATOMG, Unit.ATOM)


def _origin(form: Form) -> str:
    if form.opcode.unit in _OF_ARRAYS and form.opcode.name != "LDL":
        return "comes from memory (give its array as NAME=dtype[shape]:FILE.npy)"
    return "comes from memory" if form.opcode.unit in MEMORY else "is not computed"


class ValuesError(InputError):
    """Addresses or branches depend on what the engine does not compute."""


def target_of(form: Form, function: Function) -> int | None:
    """The row that an instruction names as a target; None also for a call of code that is not part of the kernel."""
    for operand in form.sources:
        if operand.kind is Kind.LABEL and form.opcode.unit in (Unit.BRANCH, Unit.BSSY):
            if operand.text in function.labels:
                return function.labels[operand.text] // INSTRUCTION_BYTES
            if form.parts[0] != "CALL":
                raise InputError(f"{form.instruction.place}: {form.instruction}: there is no label {operand.text}")
    return None


def rare_ways(forms: Sequence[Form]) -> frozenset[int]:
    """Branches over calls of what compilers bring for the rare cases of divisions and roots: with ordinary numbers they
    are taken."""
    found = set()
    for i, form in enumerate(forms):
        called = next((o.text for o in form.sources if o.kind is Kind.LABEL), "")
        if form.parts[0] != "CALL" or not called.startswith("$"):
            continue
        for before in range(i - 1, max(-1, i - _LONGEST_WAY), -1):
            other = forms[before]
            if other.opcode.unit in CONTROL:
                if (
                    other.opcode.unit is Unit.BRANCH
                    and other.guard
                    and (_RARE.search(called) or _is_check(forms, before))
                ):
                    found.add(before)
                break
    return frozenset(found)


_RARE = re.compile(r"\$__internal_\w*\$?\w*(slowpath|(div|rcp|sqrt)_\w*f(32|64))")
_LONGEST_WAY = 16


def _is_check(forms: Sequence[Form], branch: int) -> bool:
    """Whether what a branch asks is the answer of FCHK."""
    guard = forms[branch].guard
    assert guard is not None
    for form in reversed(forms[:branch]):
        if any(o.kind is guard.kind and o.index == guard.index for o in form.outputs):
            return form.parts[0] == "FCHK"
    return False


def ways(forms: Sequence[Form], function: Function, ordinary: frozenset[int] = frozenset()) -> list[tuple[int, ...]]:
    """Of each instruction, the rows that may follow it. ordinary: branches that are taken to be taken."""
    rows = {name: at // INSTRUCTION_BYTES for name, at in function.labels.items()}
    behind_calls = tuple(i + 1 for i, form in enumerate(forms) if form.parts[0] == "CALL" and i + 1 < len(forms))
    functions = tuple(row for name, row in rows.items() if name.startswith("$"))
    found = []
    for i, form in enumerate(forms):
        unit, certain = form.opcode.unit, form.guard is None and not form.inputs and not form.asks_lanes
        target = target_of(form, function)
        next_ones: tuple[int, ...] = ()
        if unit is Unit.BRANCH and target is not None:
            next_ones = (target,)
        elif unit is Unit.JUMP:
            named = tuple(rows[o.text] for o in form.sources if o.kind is Kind.LABEL and o.text in rows)
            next_ones = functions if form.parts[0] == "CALL" else named if named else behind_calls
        ends = unit in (Unit.BRANCH, Unit.JUMP, Unit.EXIT, Unit.CALL) and certain
        if not ends and i not in ordinary and i + 1 < len(forms):
            next_ones = (*next_ones, i + 1)
        found.append(next_ones)
    return found


def needed(
    forms: Sequence[Form], function: Function, *, data: bool = False, ordinary: frozenset[int] = frozenset()
) -> list[int]:
    """Of each instruction, what has to be computed of what it writes. data: loads may be, from arrays whose content is
    given. ordinary: branches that are taken to be taken.

    Raises ValuesError where what is needed comes from memory, or from an instruction that is only timed.
    """
    following = ways(forms, function, ordinary)
    reached = _reached(following)
    reads = [form.control_reads() if "SPIN" in form.parts else form.reads() for form in forms]
    writes = [form.writes() for form in forms]
    control = [_control(form) if there else 0 for form, there in zip(forms, reached, strict=True)]
    for i in ordinary:
        control[i] = 0
    certain = [0 if form.guard else write for form, write in zip(forms, writes, strict=True)]
    behind = _wanted_behind(following, reads, writes, certain, control)
    if any(changes_content(form, behind[i] & writes[i]) for i, form in enumerate(forms)):
        for i, form in enumerate(forms):  # what one atomic finds, others have left there
            control[i] |= reads[i] if reached[i] and form.opcode.unit in _AT_L2 else 0
        behind = _wanted_behind(following, reads, writes, certain, control)
    found = []
    for i, form in enumerate(forms):
        asked = behind[i] & writes[i] if reached[i] else 0
        found.append(asked)
        known = form.opcode.unit is Unit.SYNCS or "SPIN" in form.parts
        known |= data and form.opcode.unit in _OF_ARRAYS and form.opcode.name != "LDL"
        known |= asked & ~form.says_where() == 0
        if asked and form.opcode.meaning is Meaning.NONE and not known:
            raise ValuesError(
                f"{form.instruction.place}: {form.instruction}: addresses or branches depend on "
                f"{', '.join(names(asked))}, which {_origin(form)}; nothing was run"
            )
    return found


def changes_content(form: Form, asked: int) -> bool:
    """Whether an atomic finds what others have left, of which something needed depends."""
    return form.opcode.unit in _AT_L2 and "SPIN" not in form.parts and asked & ~form.says_where() != 0


def _wanted_behind(
    following: Sequence[tuple[int, ...]],
    reads: Sequence[int],
    writes: Sequence[int],
    certain: Sequence[int],
    control: Sequence[int],
) -> list[int]:
    """Of each instruction, what is needed behind it: backwards over the flow of control, until nothing changes."""
    count = len(following)
    before, behind = [0] * count, [0] * count
    changed = True
    while changed:
        changed = False
        for i in range(count - 1, -1, -1):
            behind[i] = 0
            for row in following[i]:
                behind[i] |= before[row]
            wanted = (behind[i] & ~certain[i]) | control[i]
            if behind[i] & writes[i]:
                wanted |= reads[i]
            if wanted != before[i]:
                before[i] = wanted
                changed = True
    return behind


def _reached(following: Sequence[tuple[int, ...]]) -> list[bool]:
    """Of each instruction, whether one before it leads there."""
    found = [False] * len(following)
    waiting = [0]
    while waiting:
        i = waiting.pop()
        if not found[i]:
            found[i] = True
            waiting += following[i]
    return found


def _control(form: Form) -> int:
    unit = form.opcode.unit
    return form.control_reads() if unit in (*MEMORY, *CONTROL, *ASYNCHRONOUS) else 0
