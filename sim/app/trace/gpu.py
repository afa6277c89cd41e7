"""The timeline of an operator on a GPU: one of its kernels, inside and as a whole. Graphs are in `gpu_graph`."""

from __future__ import annotations

from arch.errors import InputError
from arch.gpu import GpuSpec
from sim.app.families import gpu
from sim.app.families.options import Options, Progress, version
from sim.app.trace.gpu_kernel import Collector
from sim.app.trace.timeline import Timeline
from sim.app.trace.window import Wanted
from sim.engine.clock import PS_PER_S, TICKS_PER_CYCLE
from sim.gpu.engine.api import Launch
from sim.gpu.engine.events import Window
from workloads.gpu.select import choose
from workloads.graphs import Graph, GraphOperator
from workloads.ops import AllReduce, CopyH2D, Operator

ROWS = 1 << 21
"""Most rows of a kind: 128 MiB of events, 96 MiB of states."""

SAMPLES = 400
"""Samples of the counters in a window, at most."""

LEAST_SAMPLE_CYCLES = 8


def trace(
    asked: Operator | Graph, spec: GpuSpec, options: Options, wanted: Wanted, progress: Progress | None = None
) -> Timeline:
    """Runs an operator and records one of its kernels. InputError for a window that holds nothing, or too much."""
    check_units(wanted, spec)
    if isinstance(asked, Graph | GraphOperator | CopyH2D | AllReduce):
        from sim.app.trace import gpu_graph

        return gpu_graph.trace(asked, spec, options, wanted, progress)
    op = gpu.operator_on(asked, spec)
    conditions = gpu.conditions_asked(spec, options)
    config, estimate_ps = choose(op, spec, options.schedule).candidates[0]
    program = gpu.program_of(op, spec, config)
    number = wanted.kernel or 0
    if number >= len(program.kernels):
        raise InputError(f"--kernel {number}: {program.name} has kernels 0 to {len(program.kernels) - 1}")
    window = Window(
        wanted.first * TICKS_PER_CYCLE,
        1 << 50 if wanted.last is None else wanted.last * TICKS_PER_CYCLE,
        wanted.first_unit,
        wanted.last_unit,
        ROWS,
        sample_ticks=TICKS_PER_CYCLE * sample_cycles(wanted, estimate_ps, spec),
    )
    try:
        run = gpu.run_program(program, spec, conditions, estimate_ps, str(op.dtype), progress, window)
    except MemoryError as error:
        raise InputError(f"trace: {error}; a shorter --window or fewer --sm") from None
    launch, result = run.launches[number], run.results[number]
    assert result.events is not None
    assert result.trace is not None
    if not len(result.events) and not len(result.trace):
        last = -(-result.ticks // TICKS_PER_CYCLE)
        raise InputError(f"trace: nothing happens in this window; kernel {result.kernel.name} takes {last} cycles")
    found = Timeline(
        f"{asked} on {spec.name}",
        {
            "workload": str(asked),
            "machine": spec.name,
            "schedule": program.schedule,
            "kernel": result.kernel.name,
            "cycles": str(-(-result.ticks // TICKS_PER_CYCLE)),
            "time": "1 ns in this trace is 1 core cycle; 0 is the kernel's launch",
            "clock_hz": str(result.clock_hz),
            "simulator": f"tilewave {version()}",
        },
    )
    root = found.track(f"{spec.name}: 1 ns = 1 core cycle")
    _whole(found, root, launch)
    Collector(found, root, spec, launch, result, lambda tick: tick // TICKS_PER_CYCLE, alone=True).collect()
    return found


def check_units(wanted: Wanted, spec: GpuSpec) -> None:
    """InputError for SMs that the machine does not have."""
    if not wanted.first_unit <= wanted.last_unit < spec.sm.count:
        raise InputError(f"--sm {wanted.first_unit}:{wanted.last_unit}: {spec.name} has SMs 0 to {spec.sm.count - 1}")


def _whole(found: Timeline, root: int, launch: Launch) -> None:
    """The kernel as a whole, with the parts before its first CTA and after its last."""
    track, kernel = found.track("kernel", root), launch.kernel
    begin = launch.start_tick // TICKS_PER_CYCLE
    end = -(-launch.result.ticks // TICKS_PER_CYCLE)
    drain = launch.last_warp_tick // TICKS_PER_CYCLE
    found.add(track, 0, begin, "launch", "launch")
    found.add(track, begin, drain, kernel.name, "kernel", {"ctas": kernel.ctas})
    found.add(track, drain, end, "drain", "launch")


def sample_cycles(wanted: Wanted, estimate_ps: int, spec: GpuSpec) -> int:
    """Distance of the samples: some hundred in the window."""
    whole = estimate_ps * spec.clock.boost_hz // PS_PER_S
    cycles = (wanted.last if wanted.last is not None else max(whole, wanted.first)) - wanted.first
    return max(LEAST_SAMPLE_CYCLES, cycles // SAMPLES)
