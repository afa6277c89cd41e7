"""Which instructions have to be computed: those that branches, masks of lanes and addresses depend on.

The rest only takes time. Found backwards over the flow of control: what is needed before an instruction is what is
needed behind it, less what it writes for certain, plus what it reads if anything that it writes is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from arch.errors import InputError
from sim.gpu.sass.forms import ASYNCHRONOUS, CONTROL, MEMORY, Form, names
from sim.gpu.sass.operands import Kind
from sim.gpu.sass.tables import Meaning, Unit
from sim.gpu.sass.text import INSTRUCTION_BYTES, Function

_OF_ARRAYS = (Unit.LDG, Unit.LD, Unit.ATOMG, Unit.ATOM)
"""What reads device memory, local memory beside it."""


def _origin(form: Form) -> str:
    if form.opcode.unit in _OF_ARRAYS and form.opcode.name != "LDL":
        return "comes from memory (give its array as NAME=dtype[shape]:FILE.npy)"
    return "comes from memory" if form.opcode.unit in MEMORY else "is not computed"


def target_of(form: Form, function: Function) -> int | None:
    """The row that an instruction names as a target."""
    for operand in form.sources:
        if operand.kind is Kind.LABEL and form.opcode.unit is not Unit.CALL:
            if operand.text not in function.labels:
                raise InputError(f"{form.instruction.place}: {form.instruction}: there is no label {operand.text}")
            return function.labels[operand.text] // INSTRUCTION_BYTES
    return None


def needed(forms: Sequence[Form], function: Function, *, data: bool = False) -> list[int]:
    """Of each instruction, what has to be computed of what it writes. data: loads may be, from arrays whose content is
    given.

    Raises InputError where what is needed comes from memory, or from an instruction that is only timed.
    """
    count = len(forms)
    targets = [target_of(form, function) for form in forms]
    reached = _reached(forms, targets)
    reads = [form.control_reads() if "SPIN" in form.parts else form.reads() for form in forms]
    writes = [form.writes() for form in forms]
    control = [_control(form) if there else 0 for form, there in zip(forms, reached, strict=True)]
    certain = [0 if form.guard else write for form, write in zip(forms, writes, strict=True)]
    before = [0] * (count + 1)
    changed = True
    while changed:
        changed = False
        for i in range(count - 1, -1, -1):
            behind = _behind(forms[i], targets[i], i, before)
            wanted = (behind & ~certain[i]) | control[i]
            if behind & writes[i]:
                wanted |= reads[i]
            if wanted != before[i]:
                before[i] = wanted
                changed = True
    found = []
    for i, form in enumerate(forms):
        asked = _behind(form, targets[i], i, before) & writes[i] if reached[i] else 0
        found.append(asked)
        known = form.opcode.unit is Unit.SYNCS or "SPIN" in form.parts
        known |= data and form.opcode.unit in _OF_ARRAYS and form.opcode.name != "LDL"
        known |= asked & ~form.says_where() == 0
        if asked and form.opcode.meaning is Meaning.NONE and not known:
            raise InputError(
                f"{form.instruction.place}: {form.instruction}: addresses or branches depend on "
                f"{', '.join(names(asked))}, which {_origin(form)}; nothing was run"
            )
    return found


def _reached(forms: Sequence[Form], targets: Sequence[int | None]) -> list[bool]:
    """Of each instruction, whether a branch or the one before it leads there. Calls stop the run."""
    found = [False] * len(forms)
    waiting = [0]
    while waiting:
        i = waiting.pop()
        if i >= len(forms) or found[i]:
            continue
        found[i] = True
        unit, certain = forms[i].opcode.unit, forms[i].guard is None and not forms[i].inputs
        target = targets[i]
        if unit is Unit.BRANCH and target is not None:
            waiting.append(target)
        if not (certain and unit in (Unit.BRANCH, Unit.EXIT, Unit.CALL)):
            waiting.append(i + 1)
    return found


def _behind(form: Form, target: int | None, i: int, before: list[int]) -> int:
    """What is needed behind an instruction."""
    ends = form.opcode.unit in (Unit.BRANCH, Unit.EXIT, Unit.CALL) and form.guard is None and not form.inputs
    found = 0 if ends else before[i + 1]
    if target is not None and form.opcode.unit is Unit.BRANCH:
        found |= before[target]
    return found


def _control(form: Form) -> int:
    unit = form.opcode.unit
    return form.control_reads() if unit in (*MEMORY, *CONTROL, *ASYNCHRONOUS) else 0
