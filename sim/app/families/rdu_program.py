"""Programs of one's own for dataflow machines: a Python file that makes one."""

from __future__ import annotations

import runpy
import traceback
from dataclasses import dataclass

from arch.errors import InputError
from arch.rdu import RduSpec
from sim.rdu.program import Program
from workloads.ops import Operator


@dataclass(frozen=True)
class ProgramFile:
    """A file with a function `program(op, machine)`, in the place of a configuration of the shipped programs.

    It gives a `Program` whose arrays are named as the operator's, so that check mode can compare.
    """

    path: str

    schedule = "by hand"

    def __str__(self) -> str:
        return f"program {self.path}"

    def build(self, op: Operator, spec: RduSpec) -> Program:
        """The program; InputError, with the file's line, where it cannot be made."""
        try:
            made = runpy.run_path(self.path).get("program")
            program = made(op, spec) if callable(made) else None
        except InputError as error:
            raise InputError(f"{self}: {error}") from None
        except OSError as error:
            raise InputError(f"{self}: cannot be read: {error.strerror}") from None
        except Exception as error:  # whatever is wrong in somebody's file is one line, with its place
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self.path]
            line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
            raise InputError(f"{self} line {line}: {type(error).__name__}: {error}") from None
        if not isinstance(program, Program):
            raise InputError(
                f"{self}: must define program(op, machine) and give a sim.rdu.program.Program; "
                f"{'it gives ' + type(program).__name__ if callable(made) else 'it defines none'}"
            )
        self._check_names(op, program)
        return program

    def _check_names(self, op: Operator, program: Program) -> None:
        inputs, outputs = ([t.name for t in program.tensors if t.role == role] for role in ("input", "output"))
        wanted = [operand.name for operand in op.operands]
        unknown = [name for name in inputs if name not in wanted]
        if unknown or not outputs:
            what = f"input {unknown[0]}" if unknown else "no output"
            raise InputError(f"{self}: has {what}; {op.word} reads {', '.join(wanted)} and gives one array or more")
