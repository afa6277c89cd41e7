"""The opcodes that kernels in the tile language are written with, and what each costs on a machine."""

from __future__ import annotations

from typing import Any

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from sim.app.report.sections import Section
from sim.gpu.language.ops import ARITHMETIC, OPS, OpSpec


def opcodes(machine: str, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every opcode of the language with who executes it, what it does and takes, and its rows on the machine.

    Cycles are of one warp instruction: `interval` of its pipe, `latency` to what depends on it. InputError for a
    machine that is no GPU.
    """
    spec = load_arch(machine, overrides)
    if not isinstance(spec, GpuSpec):
        raise InputError(f"opcodes: {spec.name} is of family {spec.family}; kernels of the tile language run on GPUs")
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in spec.instructions:
        cost = {"pipe": row.pipe, "interval_cycles": row.interval_cycles, "latency_cycles": row.latency_cycles}
        rows.setdefault(row.op, []).append({"name": row.name, **cost})
    ops = [{"opcode": name, **_said(op), "rows": rows.get(op.row, [])} for name, op in OPS.items()]
    taken = {op.row for op in OPS.values()} | {op.row_of_registers for op in OPS.values()}
    own = [{"opcode": name, **_said(ARITHMETIC), "rows": found} for name, found in rows.items() if name not in taken]
    return {"machine": spec.name, "opcodes": [*ops, *own]}


def sections(found: dict[str, Any]) -> list[Section]:
    """Two tables: what the language has, and the rows of the machine."""
    ops = [entry for entry in found["opcodes"] if entry["by"] != _said(ARITHMETIC)["by"] or entry["opcode"] in OPS]
    language = tuple((entry["opcode"], entry["by"], entry["does"], entry["operands"]) for entry in ops)
    users: dict[str, list[str]] = {}
    costs = {}
    for entry in found["opcodes"]:
        for row in entry["rows"]:
            users.setdefault(row["name"], []).append(entry["opcode"])
            costs[row["name"]] = (row["pipe"], *(f"{row[key]:g}" for key in _CYCLES))
    instructions = tuple((name, ", ".join(users[name]), *cost) for name, cost in costs.items())
    return [
        Section("Opcodes of the tile language", language, ("opcode", "executed by", "does", "operands")),
        Section(
            f"Warp instructions of {found['machine']}; `run` takes those without a method of their own",
            instructions,
            ("instruction", "opcodes", "pipe", "interval", "latency"),
        ),
    ]


_CYCLES = ("interval_cycles", "latency_cycles")


def _said(op: OpSpec) -> dict[str, str]:
    sources = ", ".join(map(str, op.srcs)) + (" ..." if op.variadic else "")
    operands = f"{op.dst} <- {sources}" if op.srcs else ""
    return {"by": op.unit.value, "does": op.action.value, "operands": operands}
