"""Which candidate runs: those that the estimate cannot tell apart are simulated, as far as choosing is worth it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from arch.errors import InputError
from sim import simulate
from sim.app.families.choice import (
    DEAR,
    DEAREST_PERCENT,
    PROBED,
    RIVALS,
    SMALL_COST,
    WHOLE_PERCENT,
    RememberedRun,
    contenders,
    cost_of,
    decide,
)
from sim.app.families.family import LateError, PacedPlan, runner_of
from sim.app.run import _plan, program_listing, request_of, run, run_recorded, trace


@dataclass
class FakePlan:
    """Candidates with estimates and, when they run, times and events; those without a time do not fit. limits: in
    picoseconds, that the runs were given. ways: how the candidates compute."""

    estimates: Sequence[int]
    times: Sequence[int | None]
    events: Sequence[int]
    error_percent: int = 20
    ready_events: int = 20_000
    event_cost: int = 1
    simpler: Sequence[int] = ()
    ways: Sequence[str] = ()
    limits: list[int | None] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)

    @property
    def candidates(self) -> list[tuple[str, int]]:
        return [(str(number), cycles) for number, cycles in enumerate(self.estimates)]

    def run(self, number: int, progress: Any, wanted: Any = None, limit_ps: int | None = None) -> Any:
        self.ran.append(number)
        self.limits.append(limit_ps)
        time_ps, events = self.times[number], self.events[number]
        if time_ps is None:
            raise InputError("does not fit")
        if limit_ps is not None and time_ps > limit_ps:
            raise LateError({"events": events * limit_ps // time_ps})
        return SimpleNamespace(device_ps=time_ps, cycles=time_ps, counts={"events": events})


@dataclass
class FakePacedPlan(FakePlan):
    """As `FakePlan`; candidates tell what they take at the pace of their first part. begun: those that were begun."""

    paces: Sequence[int] = ()
    begun: list[int] = field(default_factory=list)

    def begin(self, number: int, progress: Any, share: float, dear: int) -> Any:
        if self.times[number] is None or self.events[number] <= dear:
            return self.run(number, None)
        self.begun.append(number)
        raise LateError({"events": round(self.events[number] * share)}, share, self.paces[number])


def chosen(plan: FakePlan, tune: bool = False) -> int:
    return decide(plan, tune).chosen  # type: ignore[arg-type]


def test_what_the_estimate_cannot_tell_apart_is_simulated() -> None:
    plan = FakePlan([100, 110, 120, 121], [9, 8, 7, 1], [0] * 4)
    assert contenders(plan) == [0, 1, 2]  # type: ignore[arg-type]
    assert chosen(plan) == 2
    assert plan.ran == [0, 1, 2]


@pytest.mark.parametrize(
    ("estimates", "times", "ran"),
    [
        ([100, 125, 130, 160], [150, 140, 110, 90], [0, 1, 2]),  # the best takes half as much again: 130 could be less
        ([100, 121, 300], [119, 60, 60], [0]),  # off by less than is stated: 121 cannot be 2 % faster
        ([100, 110, 190], [100, 55, 60], [0, 1]),  # 110 took half: 190 could take 95, but 55 is there already
        ([100, 110, 190], [100, 55, 50], [0, 1]),
        ([100, 101, 150], [100, 95, 40], [0, 1]),
        ([100, 110, 150], [160, 70, 60], [0, 1]),  # nothing took less of its estimate than 110 did
        ([100, 110, 125], [160, 150, 100], [0, 1, 2]),
        ([100, 130, 170, 210], [None, 200, 150, 10], [0, 1, 2]),  # the first does not fit: what is next must show
    ],
)
def test_what_could_win_within_the_error_that_shows_is_simulated(
    estimates: list[int], times: list[int | None], ran: list[int]
) -> None:
    plan = FakePlan(estimates, times, [0] * len(estimates))
    decide(plan)  # type: ignore[arg-type]
    assert sorted(plan.ran) == ran


def test_what_the_shown_error_asks_for_costs_no_more_than_choosing_may() -> None:
    plan = FakePlan([100, 130, 140, 150], [200, 180, 170, 160], [SMALL_COST // 2 - FakePlan.ready_events] * 4)
    assert chosen(plan) == 1
    assert plan.ran == [0, 1]
    early = FakePlan([100, 130, 140], [200, 400, 150], [0] * 3)
    assert chosen(early) == 2
    assert early.limits == [None, 200, 200]


def test_a_report_and_its_page_take_what_the_shown_error_brings() -> None:
    """A product of which TPU v2's estimate is further off than it states, for the only contender."""
    asked = request_of("gemm m=338 n=178 k=1", "tpu-v2")
    record = run(asked)
    shown = {c.schedule: (c.estimate_cycles, c.simulated_cycles) for c in record.candidates}
    estimate, cycles = shown[record.schedule]
    best = min(shown.values(), key=lambda pair: pair[0])
    assert 100 * estimate > best[0] * (100 + record.estimate_error_percent)
    assert cycles == min(took for _, took in shown.values() if took)
    assert best[1] is not None
    assert cycles < 0.9 * best[1]
    assert run_recorded(asked)[0].schedule == record.schedule


def test_what_is_simpler_comes_where_its_estimate_belongs_and_the_rest_in_the_order_of_the_list() -> None:
    """What the best one is without a mechanism stands at the end of the list, whatever its estimate."""
    plan = FakePlan([100, 110, 115, 100], [9, 8, 7, 6], [0] * 4, simpler=[3])
    assert contenders(plan) == [0, 3, 1, 2]  # type: ignore[arg-type]
    preferred = FakePlan([110, 100, 115, 112], [9, 8, 7, 6], [0] * 4, simpler=[3])
    assert contenders(preferred) == [0, 1, 3, 2]  # type: ignore[arg-type]
    large = again(DEAR_PLAN, estimates=[100, 110, 115, 100], simpler=[3])
    decide(large)  # type: ignore[arg-type]
    assert large.begun == [0, 1, 2]


def test_all_are_simulated_to_tune() -> None:
    plan = FakePlan([100, 110, 120, 999], [9, 8, 7, 1], [10**9] * 4)
    assert chosen(plan, tune=True) == 3


def test_equals_go_to_the_better_estimate() -> None:
    assert chosen(FakePlan([100, 101], [5, 5], [0, 0])) == 0


@pytest.mark.parametrize(("simple", "taken"), [(996, 0), (995, 2)])
def test_what_lacks_a_mechanism_must_be_faster_than_chance(simple: int, taken: int) -> None:
    assert chosen(FakePlan([100, 101, 102], [1000, 1003, simple], [0] * 3, simpler=[2])) == taken
    assert chosen(FakePlan([100, 101, 102], [1000, 1003, simple], [0] * 3)) == 2


def test_choosing_costs_no_more_than_a_small_problem_or_half_as_much_again() -> None:
    estimates, times = [100, 101, 102, 103, 104, 105], [9, 8, 7, 6, 5, 4]
    assert chosen(FakePlan(estimates, times, [SMALL_COST] * 6)) == 1
    small = FakePlan(estimates, times, [SMALL_COST // 6 - FakePlan.ready_events] * 6)
    assert chosen(small) == 5
    assert chosen(replace(small, event_cost=6)) == 1
    unready = FakePlan(estimates, times, [0] * 6, ready_events=SMALL_COST // 2)
    assert chosen(unready) == 1


DEAR_PLAN = FakePacedPlan([100, 102, 104, 106], [90, 80, 70, 10], [4 * SMALL_COST] * 4, paces=[100, 90, 80, 1])


def again(plan: FakePacedPlan, **changes: Any) -> FakePacedPlan:
    return replace(plan, ran=[], begun=[], limits=[], **changes)


def test_where_one_is_dear_the_one_that_is_fastest_by_pace_and_estimate_runs() -> None:
    plan = again(DEAR_PLAN)
    tried = decide(plan)  # type: ignore[arg-type]
    assert tried.chosen == 2
    assert plan.begun == [0, 1, 2]  # `RIVALS` beside the first
    assert len(plan.begun) == 1 + RIVALS
    assert plan.ran == [2]
    assert tried.paces == {0: 100, 1: 90}
    assert tried.cost <= DEAREST_PERCENT / 100 * (4 * SMALL_COST + plan.ready_events)


def test_a_rival_must_look_faster_than_the_first_by_a_per_cent_with_its_estimate() -> None:
    assert chosen(again(DEAR_PLAN, paces=[1000, 975, 975, 1])) == 0  # 975 x 102 is 0.5 % less
    assert chosen(again(DEAR_PLAN, paces=[1000, 969, 1000, 1])) == 1


def test_a_cheap_candidate_goes_to_its_end_and_so_do_its_rivals() -> None:
    plan = again(DEAR_PLAN, events=[DEAR // 4] * 4)
    assert chosen(plan) == 3
    assert not plan.begun
    assert plan.ran == [0, 1, 2, 3]


def test_rivals_begin_only_as_far_as_the_whole_of_one_is_affordable_after_them() -> None:
    dear = again(DEAR_PLAN, events=[2 * DEAR] * 4, ready_events=SMALL_COST // 6)
    tried = decide(dear)  # type: ignore[arg-type]
    assert dear.begun == [0, 1]
    assert tried.cost == 2 * round(2 * DEAR * PROBED) + 2 * DEAR + 2 * dear.ready_events <= SMALL_COST


def test_what_lacks_a_mechanism_or_has_another_ones_estimate_does_not_begin_where_that_is_dear() -> None:
    plan = again(DEAR_PLAN, simpler=[1], estimates=[100, 100, 100, 106], ways=["a", "a", "a", "a"])
    assert chosen(plan) == 3
    assert plan.begun == [0, 3]


def test_a_candidate_that_does_not_fit_is_no_rival() -> None:
    plan = again(DEAR_PLAN, times=[None, 80, None, 10])
    assert chosen(plan) == 3
    assert plan.begun == [1, 3]


def test_what_began_is_remembered() -> None:
    """The same choice at any state of the store, for one simulation."""
    asked = request_of("gemm m=2048 n=2048 k=2048 dtype=bf16", H100)
    kept: dict[str, RememberedRun] = {}
    memory: Any = SimpleNamespace(get=kept.get, put=kept.__setitem__)
    first = decide(_plan(asked), memory=memory)
    assert first.paces
    for name in [None, *kept]:
        some = {key: value for key, value in kept.items() if key != name}
        again = decide(_plan(asked), memory=SimpleNamespace(get=some.get, put=some.__setitem__))  # type: ignore[arg-type]
        assert (again.chosen, again.paces, again.cost) == (first.chosen, first.paces, first.cost)


@pytest.mark.parametrize(
    ("work", "machine"),
    [
        ("gemm m=2048 n=2048 k=2048 dtype=bf16", "h100-sxm"),
        ("gemm m=1500 n=2000 k=512 dtype=fp16", "a100-sxm4-80gb"),  # cut-off tiles
        ("gemm m=2560 n=2560 k=4096 dtype=fp16 ta=T", "b200"),
        ("softmax rows=6000 cols=4096 dtype=fp16", "h100-sxm"),
    ],
)
def test_a_pace_tells_about_what_the_whole_takes(work: str, machine: str) -> None:
    plan = _plan(request_of(work, machine))
    assert isinstance(plan, PacedPlan)
    whole = plan.run(0, None)
    with pytest.raises(LateError) as error:
        plan.begin(0, None, PROBED, 0)
    assert error.value.pace_ps == pytest.approx(whole.device_ps, rel=0.4)
    assert error.value.counts["events"] < 0.45 * whole.counts["events"]
    assert plan.begin(0, None, PROBED, 10**12).device_ps == whole.device_ps


def test_of_candidates_that_estimates_do_not_tell_apart_one_is_simulated_where_that_is_dear() -> None:
    plan = again(DEAR_PLAN, estimates=[100, 100, 101, 101], ways=["a"] * 4)
    assert chosen(plan) == 2
    assert plan.begun == [0, 2]
    other = again(plan, ways=["a", "b", "a", "b"])
    decide(other)  # type: ignore[arg-type]
    assert other.begun == [0, 1, 2]
    assert chosen(again(plan, events=[0] * 4)) == 3


@pytest.mark.parametrize(
    ("work", "schedule"),
    [
        ("gemm m=2048 n=2048 k=2048 dtype=bf16", "wgmma 128x128x64 stages 4"),
        ("gemm m=2048 n=2048 k=2048 dtype=bf16", "mma 128x128x32 warp 64x64 cp.async stages 3"),
        ("softmax rows=9000 cols=4096 dtype=bf16", "fused warps 4 rows 1"),
        ("attention batch=1 heads=16 seq=2048 head_dim=128 dtype=bf16", "flash3 128x128 stages 2 pingpong overlap"),
    ],
)
def test_a_kernel_is_given_up_by_its_pace_only_where_it_takes_longer(work: str, schedule: str) -> None:
    asked = request_of(work, H100, schedule=schedule)
    plan = runner_of(asked.machine.family).plan(asked)
    whole = plan.run(0, None)
    assert plan.run(0, None, limit_ps=whole.device_ps).device_ps == whole.device_ps
    with pytest.raises(LateError) as error:
        plan.run(0, None, limit_ps=whole.device_ps * 4 // 5)
    assert error.value.counts["events"] < 0.85 * whole.counts["events"]


def test_a_candidate_is_given_up_when_it_takes_longer_than_the_fastest() -> None:
    plan = FakePlan([100] * 4, [9, 18, 6, 12], [SMALL_COST // 5] * 4)
    tried = decide(plan)  # type: ignore[arg-type]
    assert plan.limits == [None, 9, 9, 6]
    assert tried.chosen == 2
    assert tried.late == {1: 9, 3: 6}
    assert tried.cost == 3 * (SMALL_COST // 5) + 4 * plan.ready_events  # two whole runs and two halves


def test_the_best_of_each_way_comes_before_the_second_of_one() -> None:
    plan = FakePacedPlan(
        [100, 101, 102, 119, 130], [9, 8, 7, 6, 1], [4 * SMALL_COST] * 5, ways=["a", "a", "a", "b", "c"],
        paces=[9, 8, 7, 6, 1],
    )  # fmt: skip
    assert chosen(plan) == 3
    assert plan.begun == [0, 3, 1]  # the one of way c is no contender
    tuned = FakePlan([100, 101, 102], [9, 8, 7], [0] * 3, ways=["a", "a", "b"])
    chosen(tuned, tune=True)
    assert tuned.ran == [0, 1, 2]


@pytest.mark.parametrize("seed", range(40))
def test_choosing_costs_no_more_than_it_may(seed: int) -> None:
    """With candidates that cost alike: twice what one does, or what a small problem costs."""
    rng = random.Random(seed)
    count, events = rng.randint(2, 16), rng.randint(1_000, 3 * SMALL_COST)
    estimates, ways = sorted(rng.randint(100, 125) for _ in range(count)), rng.choices("abc", k=count)
    times = [rng.randint(50, 150) for _ in range(count)]
    plan = FakePlan(estimates, times, [events] * count, ways=ways)
    tried = decide(plan)  # type: ignore[arg-type]
    assert tried.cost <= max(SMALL_COST, WHOLE_PERCENT / 100 * (events + plan.ready_events))
    assert times[tried.chosen] == min(times[number] for number in plan.ran)
    assert len(set(plan.ran)) == len(plan.ran)


def test_candidates_that_do_not_fit_are_passed_over_beyond_the_contenders() -> None:
    plan = FakePlan([100, 110, 500, 600], [None, None, 7, 1], [0] * 4)
    tried = decide(plan)  # type: ignore[arg-type]
    assert tried.chosen == 2
    assert set(tried.refused) == {0, 1}
    with pytest.raises(InputError, match="does not fit"):
        decide(FakePlan([100], [None], [0]))  # type: ignore[arg-type]


def test_what_is_simpler_than_the_best_estimate_is_simulated_while_that_is_cheap() -> None:
    plan = FakePlan([100, 110, 500, 600], [9, 8, 7, 1], [1000] * 4, simpler=[2])
    assert chosen(plan) == 2  # the last one is no contender
    assert plan.ran == [0, 1, 2]
    large = FakePlan([100, 500], [9, 7], [SMALL_COST] * 2, simpler=[1])
    assert chosen(large) == 0


@pytest.mark.parametrize(
    ("size", "mechanism"),
    [(128, "tma"), (128, "warp_specialization"), (256, "warp_specialization")],
)
def test_a_small_product_is_not_faster_without_a_mechanism(size: int, mechanism: str) -> None:
    work = f"gemm m={size} n={size} k={size} dtype=bf16"
    whole, left = simulate(work, H100), simulate(work, H100, without=[mechanism])
    assert whole.record.time_ps <= left.record.time_ps


SMALL, H100 = "gemm m=256 n=256 k=256 dtype=bf16", "h100-sxm"


def test_run_listing_and_trace_take_the_same_kernel() -> None:
    record = simulate(SMALL, H100).record
    simulated = [c for c in record.candidates if c.simulated_cycles is not None]
    assert len(simulated) > 1
    assert record.estimate_error_percent > 0
    assert record.schedule == min(simulated, key=lambda c: c.simulated_cycles or 0).schedule
    name = "gemm_" + record.schedule.replace(" ", "_")
    assert name in program_listing(SMALL, H100)
    assert trace(SMALL, H100).facts["schedule"] == record.schedule


@pytest.mark.parametrize(("fewer", "more"), [(132, 160), (160, 200), (160, 264)])
def test_more_sms_do_not_flip_the_choice_for_the_worse(fewer: int, more: int) -> None:
    """1024 cubed takes one wave of 64x128 tiles on 132 SMs; no ping-pong, whose second consumer would be idle."""
    before, after = (
        simulate("gemm m=1024 n=1024 k=1024 dtype=bf16", H100, set=[f"sm.count={count}"]).record
        for count in (fewer, more)
    )
    assert after.time_ps < 1.01 * before.time_ps
    assert "pingpong" not in before.schedule + after.schedule


@pytest.mark.parametrize(
    ("work", "machine", "faster"),
    [
        ("gemm m=8760 n=8 k=2776 dtype=fp16", H100, "wgmma 64x72x64 stages 12 swap cp.async"),
        ("gemm m=2361 n=3362 k=52 dtype=fp16", "a40", "mma 128x128x64 warp 64x64 cp.async stages 3"),
    ],
)
def test_what_was_once_a_third_slower(work: str, machine: str, faster: str) -> None:
    """Few columns, where TMA brings two parts of lines for each 128 B; rows of a result that begin within a sector."""
    assert simulate(work, machine).record.time_ps <= 1.02 * simulate(work, machine, schedule=faster).record.time_ps


def test_operators_of_a_graph_are_tuned_one_by_one() -> None:
    plain, tuned = (
        simulate("bert_layer batch=2 seq=64 hidden=128 heads=2 ffn=256", H100, tune=t) for t in (False, True)
    )
    assert [k.name for k in plain.record.kernels] != [k.name for k in tuned.record.kernels]
    assert tuned.cycles < plain.cycles


@pytest.mark.parametrize(
    ("work", "machine", "most"),
    [
        ("gemm m=1024 n=1024 k=1024 dtype=bf16", "h100-sxm", 1),
        ("gemm m=2560 n=2048 k=2048 dtype=bf16", "h100-sxm", 1.6),
        ("gemm m=1024 n=1024 k=1024 dtype=bf16", "b200", 1),
        ("softmax rows=4096 cols=4096 dtype=bf16", "h100-sxm", 1.7),
        ("attention batch=1 heads=16 seq=2048 head_dim=128", "h100-sxm", 1),
    ],
)
def test_choosing_costs_little_beside_the_kernel(work: str, machine: str, most: float) -> None:
    """Events and lines are what a simulation costs, on any computer; small problems may cost 0.3 s in all."""
    plan = _plan(request_of(work, machine, ()))
    tried = decide(plan)
    assert tried.cost <= max(SMALL_COST, most * cost_of(plan, tried.best))
