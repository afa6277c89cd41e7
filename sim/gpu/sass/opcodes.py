"""The table of SASS opcodes, `opcodes.csv`: who executes each, its row of the machine's instruction table, its meaning.

An entry holds for all opcodes that begin with its dotted parts, the longest one for each: `IMAD.WIDE` for
`IMAD.WIDE.U32`. unit: a member of `Unit`. row: of the machine's instruction table, which has pipe, interval and
latency; of accesses without the width. cycles: latency of what has no row, and of accesses the time in which they read
their operands. meaning: a member of `Meaning`; NONE for what is timed but not computed.
"""

from __future__ import annotations

import csv
import difflib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from arch.errors import InputError
from sim.gpu.sass.tables import Meaning, Unit
from sim.gpu.sass.text import Instruction


@dataclass(frozen=True)
class Opcode:
    """An entry of the table."""

    name: str
    unit: Unit
    row: str
    cycles: int
    meaning: Meaning
    source: str

    @property
    def uniform(self) -> bool:
        """Whether it computes once for the whole warp."""
        return self.unit is Unit.UNIFORM or self.name in ("S2UR", "R2UR", "REDUX")


@cache
def opcodes() -> dict[str, Opcode]:
    """Every entry by its name."""
    text = resources.files("sim.gpu.sass").joinpath("opcodes.csv").read_text(encoding="utf-8")
    return {
        row["opcode"]: Opcode(
            row["opcode"], Unit[row["unit"].upper()], row["row"], int(row["cycles"] or 0), Meaning[row["meaning"]],
            row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    }  # fmt: skip


def opcode_of(instruction: Instruction) -> Opcode:
    """The entry of an instruction. InputError, with its line, for one that the table does not know."""
    known = opcodes()
    parts = instruction.opcode.split(".")
    if parts[0] == "CALL" and len(instruction.operands) == 2:
        return known["RET"]  # of a function that a register names
    for count in range(len(parts), 0, -1):
        found = known.get(".".join(parts[:count]))
        if found is not None:
            return found
    raise InputError(f"{instruction.place}: opcode {instruction.opcode} is not known{_like(parts[0])}; nothing was run")


def _like(name: str) -> str:
    """What is known of the same kind: opcodes that begin alike, else one that is spelled almost so."""
    same = sorted(one for one in opcodes() if one.split(".")[0] == name)
    if same:
        return f" (known of {name} are {', '.join(same)})"
    near = difflib.get_close_matches(name, {one.split(".")[0] for one in opcodes()}, n=1, cutoff=_ALIKE)
    return f" (the nearest that is: {near[0]})" if near else ""


_ALIKE = 0.75
"""Share of letters that two names of one kind have in common, at least: IADD and IADD3, not MATCH and HMMA."""
