"""A program as a person reads it: counters, stages with their units and cycles, buffers with their depth."""

from __future__ import annotations

from collections.abc import Sequence

from arch.rdu import RduSpec
from arch.units import BYTES
from sim.rdu.lower import Configuration, lower_section
from sim.rdu.program import Counter, Program, Stage


def listing(program: Program, spec: RduSpec) -> str:
    """All sections of a program with what each part takes on a machine."""
    lines = [f"{program.name}  {program.schedule}  on {spec.name}"]
    seen: list[int] = []
    addresses = program.addresses()
    for call in program.calls:
        if id(call.section) in seen:
            lines.append(f"call {call.section.name} x {call.times}")
            continue
        seen.append(id(call.section))
        lines += _section(lower_section(call.section, spec, addresses), call.times)
    return "\n".join(lines) + "\n"


def _section(configuration: Configuration, times: int) -> list[str]:
    section = configuration.section
    lines = [
        f"section {section.name} x {times}: {configuration.pcus_used} PCUs, {configuration.pmus_used} PMUs",
    ]
    for stage, cost in zip(configuration.stages, configuration.costs, strict=True):
        lines.append(f"  {_head(stage)}")
        for units in configuration.channels:
            if units.read.reader is stage:
                read = units.read
                form = "stream" if read.stream else "buffer"
                extra = " transposed" if read.transposed else ""
                by = f", {units.vectors} vectors a token" if units.vectors else ""
                lines.append(
                    f"    {read.port} = {read.output.stage.name}.{read.output.name}{extra}  {form} of {read.depth} x "
                    f"{BYTES.format(units.entry_bytes)} in {len(units.pmus)} PMUs{by}"
                )
        if stage.body is not None:
            names = {number: name for name, number in stage.body.inputs.items()}
            for i, node in enumerate(stage.body.nodes):
                if node.op in ("input", "constant"):
                    names.setdefault(i, f"{node.attrs[0]}")
                    continue
                names[i] = f"t{i}"
                arguments = ", ".join(names[a] for a in node.args)
                lines.append(f"    t{i} = {node.op}({arguments})  {'x'.join(map(str, node.shape))}")
            lines.append(
                f"    {cost.pcus} PCUs, {cost.interval_cycles} cycles a firing, {cost.latency_cycles} cycles deep"
            )
        for units in configuration.channels:
            if units.read.reader is stage and units.lookup_cycles is not None:
                least, most = int(units.lookup_cycles.min()), int(units.lookup_cycles.max())
                lines.append(
                    f"    {stage.outputs['out'].out.shape[0]} rows a firing out of {len(units.pmus)} PMUs: "
                    f"{least} to {most} cycles by their banks, {cost.interval_cycles} without conflicts"
                )
        for output in stage.outputs.values():
            out = output.out
            shape = "x".join(map(str, out.token_shape))
            lines.append(f"    gives {output.name} {shape} {out.dtype} each ({_counters(out.token_over)})")
    return lines


def _head(stage: Stage) -> str:
    what = f" {stage.tensor.name}" if stage.tensor is not None else ""
    par = f" row_par={stage.row_par} col_par={stage.col_par}" if stage.kind == "compute" else ""
    return f"{stage.kind} {stage.name}{what} over ({_counters(stage.over)}){par}"


def _counters(counters: Sequence[Counter]) -> str:
    return ", ".join(
        f"{c.name} < {c.trips}" if c.outer is None else f"{c.name} <= {c.trips} by {c.outer.name}" for c in counters
    )
