"""Plans a graph step by step, for families that have no plan of their own for it.

Each distinct step is a request of its own to the machine's family and runs once; the steps follow each other. What a
family cannot run is known before anything runs: it is refused, or the host computes it, or it is counted in no time.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from arch.errors import InputError
from arch.families import families, family
from sim.app.families.choice import Trials, decide
from sim.app.families.family import CandidateRun, Host, Plan, Runner, SingleCandidatePlan, Subject
from sim.app.families.request import Progress, Request
from sim.app.report.record import (
    CheckResult,
    KernelRecord,
    LayerTime,
    LeftOut,
    MachineFigures,
    OperatorTime,
    StreamedOperators,
)
from sim.app.trace.window import Wanted
from sim.engine.clock import PS_PER_S
from workloads.graphs import Graph, GraphOperator, Step, Unread, counted
from workloads.ops import Gemm, Operator, Pointwise
from workloads.registry import operators, schedules

STEPS = "steps"
"""Schedule under which every family runs any graph step by step."""

_EXPONENTIALS = frozenset(
    (
        *("biasgelu", "biassoftmax", "celu", "elu", "erf", "exp", "fastgelu", "gelu", "gelutanh", "logsoftmax", "mish"),
        *("qlinearsigmoid", "qlinearsoftmax", "quickgelu", "reducelogsumexp", "selu", "sigmoid", "silu", "softmax"),
        *("softplus", "swiglu", "swish", "tanh"),
        *("attention", "gru", "groupqueryattention", "lstm", "multiheadattention", "rnn"),
    )
)
"""Operators, whatever their domain, whose elements take an exponential each, or as much: of those with products what is
between them does."""

_TIMED = ("host", "stream")
"""What others are that take time outside the machine's kernels."""


def runs_stepwise(request: Request) -> bool:
    """Whether a request is for a graph that its machine's family has no plan of its own for, or is not to use."""
    asked = request.asked
    if not isinstance(asked, Graph | GraphOperator):
        return False
    if not asked.joined or request.schedule == STEPS:
        return True
    own = family(request.machine.family)
    planned = isinstance(asked, GraphOperator) and schedules(asked.word, own.name)
    return not (own.graph_forms or planned)


@dataclass(frozen=True)
class StepwisePlan(SingleCandidatePlan):
    """A graph whose steps run one after the other, each by itself. plans: of each operator that runs. refused: why the
    others do not."""

    request: Request
    runner: Runner
    graph: Graph
    plans: Mapping[Operator, Plan]
    refused: Mapping[Operator, str]

    candidates = ()

    @classmethod
    def of(cls, request: Request, runner: Runner) -> StepwisePlan:
        """The plan of a request; InputError for options that a graph cannot have, and for steps that cannot run."""
        asked, known = request.asked, dict[Operator, Plan | str]()
        assert isinstance(asked, Graph | GraphOperator)
        if request.program:
            each = "step" if asked.joined else "layer"
            raise InputError(f"program={request.program}: {asked} is many programs, one a {each}; leave it out")
        _check_host(request, asked)
        plans = [_planned(request, runner, graph, known) for graph in _forms(asked, request.machine.default_dtype)]
        best = min(plans, key=lambda plan: sum(step.op.macs for step in plan.others))
        products = best._streams and any(step.op.macs for step in best.others)  # bytes alone do not stand for these
        if best.refused and (best.graph.others == "refuse" or products or not best.graph.joined or not best.plans):
            raise InputError(best._refusal())
        return best

    @property
    def steps(self) -> list[Step]:
        """Those that run on the machine."""
        return [step for step in self.graph.steps if step.op in self.plans]

    @property
    def others(self) -> list[Step]:
        """Those that do not."""
        return [step for step in self.graph.steps if step.op in self.refused]

    @property
    def subject(self) -> Subject:
        """What is computed."""
        return Subject.of_steps(self.steps, self.request.machine.default_dtype)

    @property
    def _each(self) -> str:
        """What a step is called."""
        return "step" if self.graph.joined else "layer"

    def run(
        self, number: int, progress: Progress | None, wanted: Wanted | None = None, limit_ps: int | None = None
    ) -> CandidateRun:
        """Runs the steps; what is wanted is recorded in the one with the most multiply-accumulates."""
        distinct = self._distinct
        longest = max(distinct, key=lambda op: op.macs)
        known: dict[Operator, CandidateRun] = {}
        whole, done = sum(max(op.macs, 1) for op in distinct), 0
        for op, step in distinct.items():
            known[op] = self._step(step, wanted if op == longest else None)
            done += max(op.macs, 1)
            if progress is not None:
                progress(done / whole)
        return self._ran(known, known[longest])

    @cached_property
    def _distinct(self) -> dict[Operator, Step]:
        """The first step of each operator that runs, in order."""
        found: dict[Operator, Step] = {}
        for step in self.steps:
            found.setdefault(step.op, step)
        return found

    def _step(self, step: Step, wanted: Wanted | None) -> CandidateRun:
        """One step, its schedule chosen as for an operator; InputError names it."""
        try:
            plan = self.plans[step.op]
            tried: Trials = decide(plan, self.request.tune)
            return plan.run(tried.chosen, None, wanted) if wanted else tried.best
        except InputError as error:
            raise type(error)(f"{self._each} {step.label}: {error}") from None

    def _ran(self, known: Mapping[Operator, CandidateRun], longest: CandidateRun) -> CandidateRun:
        """All steps as one run."""
        rans = [(step, known[step.op]) for step in self.steps]
        host = dict.fromkeys(name for _, ran in rans for name in ran.host_ps)
        others = self._outside(longest.machine)
        joined = self.graph.joined
        streamed = tuple(f"{level}." for level in longest.machine.external)
        return CandidateRun(
            schedule=f"{STEPS}: {len(rans)} of {len(self.graph.steps)} operators, {len(known)} distinct"
            if joined
            else "layers",
            machine=longest.machine,
            kernels=[kernel for step, ran in rans for kernel in _named(step.label, ran)],
            device_ps=sum(ran.device_ps for _, ran in rans),
            time_ps=sum(ran.time_ps for _, ran in rans) + sum(others.values()),
            counts={name: sum(ran.counts.get(name, 0) for ran in known.values()) for name in longest.counts},
            host_ps={name: sum(ran.host_ps.get(name, 0) for _, ran in rans) for name in host} | others,
            operators=self._operators(known, longest.machine) if joined else (),
            layers=() if joined else [_layer_time(step, ran) for step, ran in rans],
            left_out=self._left_out(),
            streamed=self._streamed(known, others),
            notes=[*self._notes(len(known)), *dict.fromkeys(note for _, ran in rans for note in ran.notes)],
            check=(lambda: self._checked(known)) if self.request.check else None,
            timeline=longest.timeline,
            reads=lambda path: (
                any(ran.reads(path) for ran in known.values())
                or (bool(others) and (path.startswith(streamed) if self._streams else path in self._host.figures))
            ),
        )

    def _operators(self, known: Mapping[Operator, CandidateRun], machine: MachineFigures) -> list[OperatorTime]:
        """The calls of a profile, in order: what the machine runs, and what its host computes or streams stand for."""
        found = []
        for step in self.graph.steps:
            ran = known.get(step.op)
            if ran is None and self.graph.others not in _TIMED:
                continue
            found.append(
                OperatorTime(
                    name=step.label,
                    kind=step.kind,
                    workload=str(step.op),
                    host_ps=sum(ran.host_ps.values()) if ran else self._outside_ps(machine, *_work_of(step), 1),
                    kernels=len(ran.kernels) if ran else 0,
                    device_ps=ran.device_ps if ran else 0,
                    flops=step.op.flops,
                    schedule=ran.schedule if ran else "",
                    streamed_bytes=step.op.operand_bytes if step.stands_in or (ran is None and self._streams) else 0,
                )
            )
        return found

    def _left_out(self) -> LeftOut | None:
        """What neither the machine nor its host computes."""
        unread, others = self.graph.unread, self.others
        calls = Counter(step.label for step in others)
        if self.graph.others in _TIMED or not (unread.calls or calls):
            return None
        moved = sum(unread.elements.values()) * unread.element_bytes + sum(step.op.operand_bytes for step in others)
        return LeftOut({**unread.calls, **calls}, sum(step.op.macs for step in others), moved, unread.unsized)

    @property
    def _streams(self) -> bool:
        """Whether what cannot run takes as long as its bytes do."""
        return self.graph.others == "stream"

    def _streamed(self, known: Mapping[Operator, CandidateRun], outside: Mapping[str, int]) -> StreamedOperators | None:
        """What bytes stand for: what the machine has no kernel for (outside: its times), and copies that it runs in
        another operator's place."""
        own = [step for step in self.steps if step.stands_in]
        unread, others = (self.graph.unread, self.others) if self._streams else (Unread(), [])
        calls = Counter({**unread.calls}) + Counter(step.label for step in (*others, *own))
        moved = sum(unread.elements.values()) * unread.element_bytes
        moved += sum(step.op.operand_bytes for step in (*others, *own))
        time_ps = sum(outside.values()) * self._streams + sum(known[step.op].time_ps for step in own)
        return StreamedOperators(dict(sorted(calls.items())), moved, time_ps) if calls else None

    def _outside(self, machine: MachineFigures) -> dict[str, int]:
        """Picoseconds of what the host computes between the steps, or of streams, by operator."""
        if self.graph.others not in _TIMED:
            return {}
        unread, found = self.graph.unread, Counter[str]()
        for name, calls in unread.calls.items():
            elements = unread.elements[name]
            work = elements * unread.element_bytes, elements, elements if _exponential(name) else 0
            found[name] += self._outside_ps(machine, *work, calls)
        for step in self.others:
            found[step.label] += self._outside_ps(machine, *_work_of(step), 1)
        return dict(found)

    def _outside_ps(self, machine: MachineFigures, moved_bytes: int, ops: int, exponentials: int, calls: int) -> int:
        """Time of some calls on the host, or of their bytes at the rate of the memory outside the chip."""
        if not self._streams:
            spec = self.request.machine
            return self._host.calls_ps(spec, moved_bytes, ops, exponentials, calls)
        rate = sum(machine.bandwidths[level] for level in machine.external)
        return round(moved_bytes * PS_PER_S / rate)

    @property
    def _host(self) -> Host:
        """How the machine's host computes."""
        found: Host = family(self.request.machine.family).load("host")
        return found

    def _notes(self, distinct: int) -> list[str]:
        """What a reader of the sums must know."""
        each, count = self._each, len(self.steps)
        found = [
            f"Each {each} runs by itself, its operands in the memory from which the machine's operators read them: "
            f"what a {each} leaves in caches and buffers does not help the next one"
            + (", and no two run at once." if self.graph.joined else ".")
        ]
        if distinct < count:
            found.append(f"{distinct} of {count} {each}s differ; equal ones are simulated once.")
        others = {**self.graph.unread.calls, **Counter(step.label for step in self.others)}
        if others and self.graph.others == "host":
            found.append(f"On the host, one after the other: {counted(others)}.")
        elif others and self._streams:
            found.append(f"As their bytes from and to memory, one after the other: {counted(others)}.")
        elif others:
            found.append(f"Left out, in no time: {counted(others)}.")
        return [*found, *self.graph.notes]

    def _refusal(self) -> str:
        """Why the graph does not run, all steps at once, and what would make it run."""
        asked, machine, graph = self.request.asked, self.request.machine, self.graph
        has, found = operators(machine.family), dict[str, list[Step]]()
        lacks: Counter[str] = Counter()
        for step in self.others:
            reason = re.sub(rf"^{step.op.word} [^:]*: ", "", self.refused[step.op])
            if step.op.word in has or "has no schedule" not in reason:
                found.setdefault(reason, []).append(step)
            else:
                lacks[step.op.word] += 1
        if not graph.joined:
            more = {reason: f" (and {len(steps) - 1} more)" * (len(steps) > 1) for reason, steps in found.items()}
            return "; ".join(f"layer {steps[0].label}: {reason}{more[reason]}" for reason, steps in found.items())
        said = [f"{counted(Counter(s.op.word for s in steps))}: {reason}" for reason, steps in found.items()]
        if lacks:
            said.append(f"has no {counted(lacks)}")
        ways = []
        formats = {step.op.dtype for step in self.others if step.kind == "contraction" and step.op.word in has}
        if formats - {machine.default_dtype}:
            ways.append(f"dtype={machine.default_dtype} is a format of {machine.name}")
        if graph.others == "refuse":
            host = ", others=host has the host compute them" * bool(family(machine.family).host)
            ways.append(f"others=count leaves such operators out{host}")
        right = f"; {'; '.join(ways)}" if ways else ""
        return f"{asked}: does not run on {machine.name}: {'; '.join(said)}{right}"

    def _checked(self, known: Mapping[Operator, CandidateRun]) -> tuple[CheckResult, list[str]]:
        """The checks of all steps: the largest error, and what was wrong where."""
        results: list[CheckResult] = []
        wrong: list[str] = []
        for op, step in self._distinct.items():
            check = known[op].check
            assert check is not None
            result, found = check()
            results.append(result)
            wrong += [f"{self._each.capitalize()} {step.label}: {sentence}" for sentence in found]
        errors = [result.max_rel_error for result in results if result.max_rel_error is not None]
        return CheckResult(all(result.passed for result in results), max(errors, default=None)), wrong

    def listing(self) -> str:
        """The programs of all steps that differ, one after the other."""
        found = []
        for op, step in self._distinct.items():
            plan = self.plans[op]
            number = decide(plan).chosen if len(plan.candidates) > 1 else 0
            text = self.runner.listing(_request_of(self.request, op), number)
            found.append(f"# {self._each} {step.label}: {op}\n{text}")
        return "\n".join(found)


def _check_host(request: Request, asked: Graph | GraphOperator) -> None:
    """InputError where the host is to compute what it cannot."""
    if asked.others != "host":
        return
    what = asked.word if isinstance(asked, GraphOperator) else str(asked)
    if not family(request.machine.family).host:
        with_host = ", ".join(other.example for other in families().values() if other.host)
        raise InputError(f"{what} others=host: {request.machine.name} has no host that computes, {with_host} has one")
    if request.scope == "array":
        raise InputError(f"{what} others=host: scope=array is the array alone; others=count")


def _forms(asked: Graph | GraphOperator, dtype: str) -> list[Graph]:
    """The graph in the forms that it has: operators that are chains of others first."""
    if isinstance(asked, Graph):
        return [asked]
    whole = asked.with_defaults(dtype)
    return [whole.graph(fused) for fused in ((True, False) if asked.joined else (False,))]


def _planned(request: Request, runner: Runner, graph: Graph, known: dict[Operator, Any]) -> StepwisePlan:
    """A graph with the plans of its operators. known: plans and refusals so far."""
    for op in dict.fromkeys(step.op for step in graph.steps):
        if op not in known:
            known[op] = _plan_of(request, runner, op)
    graph = _laid_out(request, runner, _apart(request, runner, graph, known), known)
    plans = {op: plan for op, plan in known.items() if not isinstance(plan, str)}
    own = {step.op for step in graph.steps}
    return StepwisePlan(
        request,
        runner,
        graph,
        {op: plan for op, plan in plans.items() if op in own},
        {op: why for op, why in known.items() if op in own and op not in plans},
    )


def _apart(request: Request, runner: Runner, graph: Graph, known: dict[Operator, Any]) -> Graph:
    """The graph with products and functions of their results as steps of their own, where both in one are refused."""
    steps: list[Step] = []
    for step in graph.steps:
        op = step.op
        if not (isinstance(op, Gemm) and op.functions and isinstance(known[op], str)):
            steps.append(step)
            continue
        plain, dtype = replace(op, epilogue="none"), op.results[0].dtype
        cols = op.n if "bias" in op.functions else None
        after = Pointwise(n=op.batch * op.m * op.n, chain=op.epilogue, cols=cols, dtype=dtype).with_defaults(dtype)
        for part in (plain, after):
            if part not in known:
                known[part] = _plan_of(request, runner, part)
        steps.append(replace(step, op=plain, operands=step.operands[:2]))
        more = (*step.results, *step.operands[2:])
        steps.append(replace(step, label=f"{step.label} ({op.epilogue})", op=after, operands=more))
    return replace(graph, steps=tuple(steps))


def _laid_out(request: Request, runner: Runner, graph: Graph, known: dict[Operator, Any]) -> Graph:
    """The graph with those weights the other way round that a product is refused for: they are known before it runs.
    Where bytes stand for what cannot run, other operands are turned before the product."""
    steps, turned = list[Step](), 0
    for step in graph.steps:
        op, weights = step.op, isinstance(step.op, Gemm) and _of_weights(graph, step)
        if isinstance(op, Gemm) and isinstance(known[op], str) and (weights or graph.others == "stream"):
            other = replace(op, tb="T" if op.tb == "N" else "N")
            if other not in known:
                known[other] = _plan_of(request, runner, other)
            if not isinstance(known[other], str):
                if weights:
                    turned += 1
                else:
                    moved = Pointwise(n=op.batch * op.k * op.n, chain="copy").with_defaults(op.operands[1].dtype)
                    known.setdefault(moved, _plan_of(request, runner, moved))
                    steps.append(Step("transpose", moved, step.operands[1:2], step.operands[1:2]))
                op = other
        steps.append(replace(step, op=op))
    if not turned:
        return graph
    note = f"Weights of {turned} products are stored transposed, as {request.machine.name} reads them."
    return replace(graph, steps=tuple(steps), notes=(*graph.notes, note))


def _of_weights(graph: Graph, step: Step) -> bool:
    """Whether the second operand of a product is there before the graph runs."""
    return not graph.joined or step.operands[1].buffer in graph.inputs


def _plan_of(request: Request, runner: Runner, op: Operator) -> Plan | str:
    """The plan of a step, or why there is none. InputError where schedules are held, and none of one that could run."""
    try:
        return runner.plan(_request_of(request, op))
    except InputError as error:
        if request.held and str(op) not in dict(request.held):
            with_own = _plan_of(replace(request, held=()), runner, op)
            if not isinstance(with_own, str):
                raise
            return with_own
        return str(error)


def _request_of(request: Request, op: Operator) -> Request:
    """What a step asks of the machine's family."""
    found = request.holding(op)
    return replace(found, schedule="auto") if found.schedule == STEPS else found


def _work_of(step: Step) -> tuple[int, int, int]:
    """Bytes that the host moves for a step, operations, and exponentials among them."""
    op = step.op
    elements = sum(math.prod(operand.shape) for operand in (*op.operands, *op.results))
    names = getattr(op, "functions", [op.word])
    return op.operand_bytes, max(elements, op.flops), elements * any(map(_exponential, names))


def _exponential(name: str) -> bool:
    return re.split(r"[ .]", name)[-1].lower().replace("_", "") in _EXPONENTIALS


def _layer_time(step: Step, ran: CandidateRun) -> LayerTime:
    op = step.op
    return LayerTime(step.label, str(op), ran.schedule, len(ran.kernels), ran.time_ps, op.macs, op.operand_bytes)


def _named(step: str, ran: CandidateRun) -> Sequence[KernelRecord]:
    """A step's kernels under its name."""
    if len(ran.kernels) == 1:
        return [replace(ran.kernels[0], name=step)]
    return [replace(kernel, name=f"{step}: {kernel.name}") for kernel in ran.kernels]
