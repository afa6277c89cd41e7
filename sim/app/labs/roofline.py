"""Lab 1, roofline and regimes: what limits a run, and what would have to change."""

from __future__ import annotations

from functools import cache

from arch.errors import InputError
from sim.app.labs import NOT_ANSWERED, Answers, Task, Wrong, judge
from sim.app.labs.wire import Run
from sim.app.report.report import Report
from sim.app.run import simulate

MACHINES = ("a100-sxm4-80gb", "h100-sxm", "t4")
GEMM = "gemm m=512 n=512 k=512 dtype=fp16"
GUESSES = {
    "add n=16M dtype=fp16": "dram",
    "gemm m=2k n=2k k=2k dtype=fp16": "compute",
    "softmax rows=8k cols=2k dtype=fp16": "dram",
}
"""Workloads whose bound on an A100 is guessed before they run, and what it is."""
ADD = "add n={} dtype=fp32"
STREAMED = "add n=16M dtype=fp16"


def ridge(answers: Answers) -> None:
    """`ridge(report)`: operations a byte at which the roofs meet."""
    for machine in MACHINES:
        found = judge.number(judge.call(answers, "ridge", Run(GEMM, machine)), "ridge(report)")
        right = simulate(GEMM, machine).figures.ridge
        if abs(found / right - 1) > 0.02:
            raise Wrong(f"on {machine} your ridge is {found:.4g} operations a byte: which two figures meet there?")


def guesses(answers: Answers) -> None:
    """`guesses`: the bound of each workload on an A100."""
    said = answers["guesses"]
    if not isinstance(said, dict):
        raise Wrong("guesses has to be a dictionary of workloads and words")
    if all(said.get(text) in (None, ...) for text in GUESSES):
        raise Wrong(f"guesses: {NOT_ANSWERED}")
    for text, right in GUESSES.items():
        if said.get(text) != right:
            raise Wrong(f"{text}: {said.get(text)!r} is not what bounds it; compare its intensity with the ridge")


def _add(n: int) -> Report:
    return simulate(ADD.format(n), "a100-sxm4-80gb", scope="stream")


def smallest(answers: Answers) -> None:
    """`smallest`: the least power of two of elements at which an addition is no longer overhead bound."""
    n = judge.power_of_two(answers["smallest"], "smallest", 1 << 26)
    if _add(n).bound == "overhead":
        raise Wrong(f"{n} elements are still overhead bound")
    if _add(n // 2).bound != "overhead":
        raise Wrong(f"{n // 2} elements are not overhead bound either")


@cache
def _streamed_us() -> float:
    return simulate(STREAMED, "h100-sxm").time_us


def faster(answers: Answers) -> None:
    """`change`: one figure of the machine that makes a streaming addition at least 1.4 times as fast."""
    change = answers["change"]
    if not isinstance(change, str) or change.count("=") != 1:
        raise Wrong("change has to be one override, such as 'sm.count=132'")
    before = _streamed_us()
    try:
        after = simulate(STREAMED, "h100-sxm", set=[change]).time_us
    except InputError as error:
        raise Wrong(str(error)) from None
    if before < 1.4 * after:
        raise Wrong(f"with {change} it is {before / after:.2f} times as fast: does that figure bound the run?")


TASKS = (
    Task("the ridge of a machine", 2, ("ridge",), ridge),
    Task("what bounds each workload", 3, ("guesses",), guesses),
    Task("where overhead ends", 2, ("smallest",), smallest),
    Task("the figure that matters", 3, ("change",), faster),
)
