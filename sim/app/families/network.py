"""Plans a network: each layer is a request of its own to the machine's family, and equal layers are simulated once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.families import family
from arch.tpu import TpuSpec
from sim.app.families.choice import Tried, decide
from sim.app.families.family import Ran, Runner, Subject
from sim.app.families.request import Progress, Request
from sim.app.report.record import CheckResult, KernelRecord, LayerTime, LeftOut
from sim.app.trace.window import Wanted
from sim.engine.clock import PS_PER_S
from workloads.ops import NetworkFile, NetworkLayer, Operator
from workloads.ops.network_file import counted

_EXPONENTIALS = frozenset(
    (
        *("BiasGelu", "BiasSoftmax", "Celu", "Elu", "Erf", "Exp", "FastGelu", "Gelu", "LogSoftmax", "Mish"),
        *("QLinearSigmoid", "QLinearSoftmax", "QuickGelu", "ReduceLogSumExp", "Selu", "Sigmoid", "Softmax", "Softplus"),
        *("SwiGLU", "Swish", "Tanh"),
        *("Attention", "GRU", "GroupQueryAttention", "LSTM", "MultiHeadAttention", "RNN"),
    )
)
"""Operators of models, whatever their domain, whose elements take an exponential each, or as much: of those with
products what is between them does."""

_HOST_FIGURES = ("host.turnaround", "host.bandwidth", "host.ops", "host.exp_ops", "pcie.bandwidth")

APART = (
    "Each layer runs by itself, its operands in the memory from which the machine's operators read them: what a layer "
    "leaves in caches and buffers does not help the next one."
)


@dataclass(frozen=True)
class NetworkPlan:
    """A network whose layers run one after the other."""

    request: Request
    runner: Runner
    op: NetworkFile

    candidates = ()
    ways: ClassVar[tuple[str, ...]] = ()
    simpler: ClassVar[tuple[int, ...]] = ()
    error_percent = ready_events = 0
    overview = Wanted()

    @classmethod
    def of(cls, request: Request, runner: Runner) -> NetworkPlan:
        """The plan of a request for a network. InputError for options that a network cannot have."""
        asked = request.asked
        assert isinstance(asked, NetworkFile)
        if request.program:
            raise InputError(f"program={request.program}: {asked} is many programs, one a layer; leave it out")
        if asked.others == "host" and not family(request.machine.family).host_computes:
            raise InputError(f"network others=host: {request.machine.name} has no host that computes, tpu-v1 has one")
        if asked.others == "host" and request.scope == "array":
            raise InputError("network others=host: scope=array is the array alone; others=count")
        return cls(request, runner, asked.with_defaults(request.machine.default_dtype))

    @property
    def subject(self) -> Subject:
        """What is computed."""
        return Subject.of(self.op)

    def run(
        self, number: int, progress: Progress | None, wanted: Wanted | None = None, limit_ps: int | None = None
    ) -> Ran:
        """Runs the layers; what is wanted is recorded in the one with the most multiply-accumulates."""
        distinct = self._distinct()
        longest = max(distinct, key=lambda op: op.macs)
        known: dict[Operator, Ran] = {}
        whole, done = sum(op.macs for op in distinct), 0
        for op, layer in distinct.items():
            known[op] = self._layer(layer, wanted if op == longest else None)
            done += op.macs
            if progress is not None:
                progress(done / whole)
        return self._ran(known, known[longest])

    def _distinct(self) -> dict[Operator, NetworkLayer]:
        """The first layer of each operator, in order."""
        found: dict[Operator, NetworkLayer] = {}
        for layer in self.op.layers:
            found.setdefault(layer.op, layer)
        return found

    def _layer(self, layer: NetworkLayer, wanted: Wanted | None) -> Ran:
        """One layer, its schedule chosen as for an operator; InputError names it."""
        try:
            request = self.request.holding(layer.op)
            plan = self.runner.plan(request)
            tried: Tried = decide(plan, request.tune)
            return plan.run(tried.chosen, None, wanted) if wanted else tried.best
        except InputError as error:
            raise type(error)(f"layer {layer.name}: {error}") from None

    def _ran(self, known: Mapping[Operator, Ran], longest: Ran) -> Ran:
        """All layers as one run."""
        rans = [known[layer.op] for layer in self.op.layers]
        counts = {name: sum(ran.counts[name] for ran in known.values()) for name in longest.counts}
        host = dict.fromkeys(name for ran in rans for name in ran.host_ps)
        others = self._on_host()
        return Ran(
            schedule="layers",
            machine=longest.machine,
            kernels=[k for layer, ran in zip(self.op.layers, rans, strict=True) for k in _named(layer.name, ran)],
            device_ps=sum(ran.device_ps for ran in rans),
            time_ps=sum(ran.time_ps for ran in rans) + sum(others.values()),
            counts=counts,
            host_ps={name: sum(ran.host_ps.get(name, 0) for ran in rans) for name in host} | others,
            layers=[_time(layer, ran) for layer, ran in zip(self.op.layers, rans, strict=True)],
            left_out=self._left_out(),
            notes=[*self._notes(len(known)), *dict.fromkeys(note for ran in rans for note in ran.notes)],
            check=(lambda: self._checked(known)) if self.request.check else None,
            timeline=longest.timeline,
            reads=lambda path: (
                any(ran.reads(path) for ran in known.values()) or (bool(others) and path in _HOST_FIGURES)
            ),
        )

    def _left_out(self) -> LeftOut | None:
        """What no layer and no host computes: cheap operators, which have no products (`workloads.networks`)."""
        others = self.op.others_left_out
        if not others or self.op.others == "host":
            return None
        moved = sum(self.op.elements_of_others.values()) * DTYPE_BYTES[str(self.op.out)]
        return LeftOut(others, 0, moved, self.op.unsized_others)

    def _on_host(self) -> dict[str, int]:
        """Picoseconds of what the host computes between the layers, by operator: of each the turnaround, then the
        longer of moving its elements and computing them. Where activations lie in the chip's memory, they come and go
        over PCIe."""
        if self.op.others != "host":
            return {}
        spec = self.request.machine
        assert isinstance(spec, TpuSpec)
        host, wide = spec.host, DTYPE_BYTES[str(self.op.out)]
        found = {}
        for name, count in self.op.others_left_out.items():
            elements = self.op.elements_of_others[name]
            ops = elements * (host.exp_ops if re.split(r"[ .]", name)[-1] in _EXPONENTIALS else 1)
            busy = max(elements * wide / host.bandwidth_bytes_per_s, ops / host.ops_hz)
            if spec.unified_buffer.behind != "host":
                busy += elements * wide / spec.pcie.bandwidth_bytes_per_s
            found[name] = count * host.turnaround_ps + round(busy * PS_PER_S)
        return found

    def _notes(self, distinct: int) -> list[str]:
        """What a reader of the sums must know."""
        found, count, over = [APART], len(self.op.layers), self.op.hangs_over
        if distinct < count:
            found.append(f"{distinct} of {count} layers differ; equal ones are simulated once.")
        if self.op.others == "host":
            found.append(f"On the host, one after the other: {counted(self.op.others_left_out)}.")
        elif self.op.others_left_out:
            found.append(f"Left out, in no time: {counted(self.op.others_left_out)}.")
        if over:
            names = ", ".join(over[:3]) + (" and others" if over[3:] else "")
            found.append(
                f"The last window of {names} hangs over the edge of the image and counts, as in SCALE-Sim: the image "
                "is that much larger."
            )
        return found

    def _checked(self, known: Mapping[Operator, Ran]) -> tuple[CheckResult, list[str]]:
        """The checks of all layers: the largest error, and what was wrong where."""
        results: list[CheckResult] = []
        wrong: list[str] = []
        for op, layer in self._distinct().items():
            check = known[op].check
            assert check is not None
            result, found = check()
            results.append(result)
            wrong += [f"Layer {layer.name}: {sentence}" for sentence in found]
        errors = [result.max_rel_error for result in results if result.max_rel_error is not None]
        return CheckResult(all(result.passed for result in results), max(errors, default=None)), wrong

    def listing(self) -> str:
        """The programs of all layers that differ, one after the other."""
        found = []
        for op, layer in self._distinct().items():
            request = self.request.holding(op)
            plan = self.runner.plan(request)
            number = decide(plan).chosen if len(plan.candidates) > 1 else 0
            found.append(f"# layer {layer.name}: {op}\n{self.runner.listing(request, number)}")
        return "\n".join(found)


def _time(layer: NetworkLayer, ran: Ran) -> LayerTime:
    op = layer.op
    return LayerTime(layer.name, str(op), ran.schedule, len(ran.kernels), ran.time_ps, op.macs, op.operand_bytes)


def _named(layer: str, ran: Ran) -> Sequence[KernelRecord]:
    """A layer's kernels under its name."""
    if len(ran.kernels) == 1:
        return [replace(ran.kernels[0], name=layer)]
    return [replace(kernel, name=f"{layer}: {kernel.name}") for kernel in ran.kernels]
