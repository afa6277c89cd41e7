"""Accel-Sim's traces as workloads: `kernel-1.traceg`, `.traceg.xz`, `.tracez`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arch.errors import InputError
from sim.gpu.sass.trace_files import read_trace
from sim.gpu.sass.traced import traced_program
from workloads.written import OwnProgram, ProgramFile, sources_sha256


@dataclass(frozen=True)
class AccelSimTrace(ProgramFile):
    """A kernel as Accel-Sim's tracer saw it run; grid, block and shared memory are in the file."""

    compiled = True

    def __str__(self) -> str:
        return self.path

    def on(self, machine: Any) -> OwnProgram:
        """The launch as a program."""
        return OwnProgram(self.path, traced_program(read_trace(self.path), self.path))


def read_words(words: Sequence[str]) -> AccelSimTrace:
    """The trace that a word names; InputError for further words."""
    if len(words) > 1:
        raise InputError(f"{words[0]}: a trace has its launch in it; leave {words[1]} out")
    return AccelSimTrace(words[0], "", (), sources_sha256(words[0]))
