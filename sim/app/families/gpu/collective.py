"""Collectives of a library on GPUs: one kernel a device, whose time its messages make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.near import hint
from sim.app.families.family import CandidateRun, SingleCandidatePlan, Subject
from sim.app.families.gpu.records import machine_figures, path_counters
from sim.app.families.request import Progress, Request
from sim.app.report.record import CheckResult, GpuLaunch, KernelRecord
from sim.app.trace.window import Wanted
from sim.engine.clock import PS_PER_S
from sim.host.scopes import Call, calls_ps
from sim.link import custom, nccl
from sim.link.library import CollectiveCost, Kind, Plan, run
from workloads.ops import Collective

SCHEDULES = (*nccl.LIBRARIES, *custom.LIBRARIES)
"""Whose kernels run. `vllm_eager`: the framework copies the buffer into one of its own first. For a sum in the switch
both copy it there and back."""

_EAGER = "vllm_eager"
_CHECKED_ELEMENTS = 2**22


@dataclass(frozen=True)
class CollectivePlan(SingleCandidatePlan):
    """A collective with the ways that its library weighs."""

    request: Request
    spec: GpuSpec
    op: Collective

    @property
    def subject(self) -> Subject:
        """What is computed."""
        return Subject.of(self.op)

    @cached_property
    def plans(self) -> Sequence[tuple[str, Plan, int]]:
        """Kernels with their schedules and what the library expects of them, in ps; what it takes first."""
        op, library, kind = self.op, self._library, _kind(self.op)
        if library in custom.LIBRARIES:
            if kind != "all_reduce":
                raise InputError(f"schedule={library}: has all_reduce alone; schedule=nccl runs {op.word}")
            nccl.estimates(self.spec, kind, op.gpus, op.size_bytes)  # refuses more devices than a node has
            own = custom.plan(self.spec, library, op.gpus, op.size_bytes)
            if own is not None:
                return [(f"{library} {own}", own, own.start_ps)]
            library = "nccl"
        found = []
        for way in nccl.estimates(self.spec, kind, op.gpus, op.size_bytes, library):
            if way.algorithm != "tree":
                made = nccl.plan(self.spec, kind, op.gpus, op.size_bytes, way.algorithm, way.protocol)
                found.append((f"{library} {made}", made, way.time_ps))
        asked = self.request.schedule
        if asked in ("auto", *SCHEDULES):
            return found
        chosen = [entry for entry in found if entry[0].startswith(asked)]
        if not chosen:
            known = [*SCHEDULES, *(text for text, _, _ in found)]
            raise InputError(f"schedule={asked}: {op} has {', '.join(known)}{hint(asked, known)}")
        return chosen

    @property
    def candidates(self) -> list[tuple[str, int]]:
        """Schedules with the cycles that the library's own model expects."""
        hz = self.spec.clock.boost_hz
        return [(text, time_ps * hz // PS_PER_S) for text, _, time_ps in self.plans]

    @property
    def _library(self) -> str:
        word = self.request.schedule.split()[0]
        return word if word in SCHEDULES else "nccl"

    def run(
        self, number: int, progress: Progress | None, wanted: Wanted | None = None, limit_ps: int | None = None
    ) -> CandidateRun:
        """Runs one of them. InputError for a timeline, which has only messages that are alike."""
        if wanted is not None and wanted != self.overview:
            raise InputError(f"trace: {self.op.word} is one kernel a device whose messages are alike")
        text, made, _ = self.plans[number]
        ended = run(made)
        launch_ps = self.spec.launch.kernel_ps
        moved_ps = launch_ps + ended.time_ps
        calls = [Call(self.op.word, (moved_ps,))]
        switched, eager = made.algorithm == "multimem", self._library == _EAGER
        if switched:
            calls = [self._copy, *calls, self._copy]
        elif eager:
            calls.insert(0, self._copy)
        time_ps = calls_ps(self.spec, calls, self.request.scope)
        if self.request.scope == "stream":
            bench = self.request.bench
            time_ps = max(time_ps, bench.host_switch_call_ps if switched else bench.host_call_ps)
        device_ps = sum(call.device_ps(self.spec) for call in calls)
        record = _record(self.op, made, ended, moved_ps, self.spec)
        return CandidateRun(
            schedule=text,
            machine=machine_figures(self.spec, str(self.op.dtype)),
            kernels=[record],
            device_ps=device_ps,
            time_ps=time_ps,
            counts={"events": 0},
            host_ps={"host": time_ps - device_ps} if time_ps > device_ps else {},
            check=(lambda: self._check(made)) if self.request.check else None,
            reads=lambda path: self._reads(path, copies=switched or eager),
        )

    @property
    def _copy(self) -> Call:
        """The buffer from one place in memory to another."""
        dram, launch = self.spec.dram, self.spec.launch
        copied_ps = 2 * self.op.size_bytes * PS_PER_S // dram.bandwidth_bytes_per_s
        return Call("copy", (launch.kernel_ps + dram.latency_ps + copied_ps + launch.drain_ps,))

    def _reads(self, path: str, *, copies: bool) -> bool:
        """Whether the run read a figure, by the path that people type. copies: beside the library's kernel."""
        if path.startswith("collectives.") or path in ("link.peers", "launch.kernel", "clock.boost"):
            return True
        if path.startswith(("link.", "pcie.")):
            return path.startswith("link.") == nccl.path_between(self.spec, self.op.gpus).nvlink
        if path.startswith("launch."):
            return self.request.scope != "kernel"
        if path == "compute_capability":
            return self.op.word == "alltoall"
        if path in ("dram.latency", "l2.size", "sm.count"):
            return self._library in custom.LIBRARIES
        return path == "dram.bandwidth" and copies

    def _check(self, made: Plan) -> tuple[CheckResult, list[str]]:
        """Runs it with numbers and compares with NumPy."""
        op = self.op
        if op.gpus * op.elements > _CHECKED_ELEMENTS:
            fitting = _CHECKED_ELEMENTS // op.gpus
            raise InputError(f"check: {op} has more elements than are carried along; elements={fitting} or less")
        operands = op.inputs(seed=0)
        values = [np.asarray(row, dtype=np.float64) for row in operands[0]]
        result = np.stack([np.ravel(value) for value in run(made, values).values])
        error = op.largest_error([result], *operands)
        return CheckResult(error <= op.tolerance, error), []


def _kind(op: Collective) -> Kind:
    kind: Kind = op.word  # type: ignore[assignment]
    return kind


def _record(op: Collective, made: Plan, ended: CollectiveCost, time_ps: int, spec: GpuSpec) -> KernelRecord:
    """The kernel of one device: cycles are those that the core's clock would count meanwhile."""
    return KernelRecord(
        name=f"{op.word}: {made.algorithm} over {op.gpus}",
        schedule=str(made),
        cycles=time_ps * spec.clock.boost_hz // PS_PER_S,
        clock_hz=spec.clock.boost_hz,
        time_ps=time_ps,
        counters=path_counters(spec, op.gpus, ended),
        own=GpuLaunch((made.channels, 1, 1)),
        launch_ps={"command": spec.launch.kernel_ps},
    )
