"""Reads the disassembly that `nvdisasm -c -hex -g` prints: instructions, control words, lines of the source."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from arch.errors import InputError

INSTRUCTION_BYTES = 16

_FIRST = re.compile(
    r"\s+/\*(?P<at>[0-9a-f]{4,6})\*/\s+(?:@(?P<guard>!?U?P[0-9T])\s+)?(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>.*?)\s*;"
    r"\s*/\* 0x(?P<word>[0-9a-f]{16}) \*/"
)
_SECOND = re.compile(r"\s+/\* 0x(?P<word>[0-9a-f]{16}) \*/")
_LABEL = re.compile(r"(?P<name>\.L_\w+|\$[\w.$]+):")
_TARGET = re.compile(r"\.L_\w+")
_FUNCTION = re.compile(r"\s*\.section\s+\.text\.(?P<name>[^,\s]+)")
_LINE = re.compile(r'\s*//## File "(?P<file>[^"]*)", line (?P<line>\d+)')


class Control(NamedTuple):
    """What the compiler says beside an instruction: the control word of Volta and later.

    stall: cycles until the warp's next instruction. gives_way: another warp is to go next. write, read: scoreboards
    that its result and its operands release, -1 none. wait: mask of scoreboards that it waits for.
    """

    stall: int
    gives_way: bool
    write: int
    read: int
    wait: int

    @classmethod
    def of(cls, word: int) -> Control:
        """From the upper 64 bits of an instruction."""
        write, read = word >> 46 & 7, word >> 49 & 7
        return cls(
            stall=word >> 41 & 15,
            gives_way=not word >> 45 & 1,
            write=-1 if write == 7 else write,
            read=-1 if read == 7 else read,
            wait=word >> 52 & 63,
        )


@dataclass(frozen=True)
class Instruction:
    """One instruction as it is printed. guard: `P0`, `!UP1`, empty without one. file, line: of the user's source."""

    address: int
    guard: str
    opcode: str
    operands: tuple[str, ...]
    control: Control
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".rstrip()

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        source = f" ({self.file}, line {self.line})" if self.line else ""
        return f"/*{self.address:04x}*/{source}"


@dataclass
class Function:
    """The instructions of a kernel, and its labels by name: addresses."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def read_functions(text: str) -> dict[str, Function]:
    """Every function of a disassembly. Raises InputError for text that is none."""
    found: dict[str, Function] = {}
    function: Function | None = None
    pending: re.Match[str] | None = None
    waiting: list[str] = []  # labels of the instruction that follows
    file, line = "", 0
    for row in text.splitlines():
        if match := _FUNCTION.match(row):
            function = found.setdefault(match["name"], Function(match["name"]))
            file, line = "", 0
        elif match := _LINE.match(row):
            if "inlined at" not in row or not file:
                file, line = match["file"], int(match["line"])
        elif match := _LABEL.match(row):
            waiting.append(match["name"])
        elif match := _FIRST.match(row):
            pending = match
        elif pending is not None and function is not None and (match := _SECOND.match(row)):
            at = int(pending["at"], 16)
            function.labels |= dict.fromkeys(waiting, at)
            waiting = []
            operands = tuple(split_operands(pending["operands"]))
            control = Control.of(int(match["word"], 16))
            function.instructions.append(
                Instruction(at, pending["guard"] or "", pending["opcode"], operands, control, file, line)
            )
            pending = None
    functions = {name: function for name, function in found.items() if function.instructions}
    if not functions:
        raise InputError("disassembly: holds no instruction with its encoding, as nvdisasm -c -hex prints them")
    return functions


def split_operands(text: str) -> list[str]:
    """Operands between commas, those within brackets left whole. Behind a register that a branch goes to stand what is
    added to it, or the function that it counts from, and in a comment the labels that it may name."""
    text, _, comment = text.partition("(*")
    parts = re.split(r",\s*(?![^\[(]*[\])])|\s+(?=`\(|-?0x)", text.strip())
    return [part.strip() for part in parts if part.strip()] + [f"`({name})" for name in _TARGET.findall(comment)]
