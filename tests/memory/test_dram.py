"""Blocked at t - 1, ready at t: the timing table of external memory, one constraint at a time."""

from collections.abc import Iterable
from typing import Any, get_args

import numpy as np
import pytest

from arch.dram_standards import list_standards
from arch.load import load_arch
from arch.memory import PagePolicy
from sim.engine.clock import TICKS_PER_CYCLE
from sim.memory.counters import MemoryCounter
from sim.memory.dram import BANK_WORDS, DramSpec, DramState, lower_dram, new_dram_state, settle_dram
from sim.memory.dram_kernel import bank_of, dram_read, dram_write, refresh_at
from sim.memory.page_policy import POLICIES
from tests.memory.machines import CLOCK_HZ, tiny

NS = TICKS_PER_CYCLE
"""Ticks of a nanosecond at the tests' clock."""

UNITS_PER_ROW = 8


class Memory:
    """One channel set with its state; times in ns."""

    def __init__(self, **changes: Any) -> None:
        figures = {
            "latency_ps": 100_000, "t_rcd_ps": 14_000, "t_rp_ps": 15_000, "t_ras_ps": 33_000, "t_rc_ps": 50_000,
            "t_faw_ps": 4_000, "t_wtr_ps": 9_000, "t_rtw_ps": 5_000, "t_refi_ps": 3_900_000, "t_rfc_ps": 0,
            "overhead": 0.0,
        }  # fmt: skip
        self.spec: DramSpec = lower_dram(tiny(dram=figures | changes).dram, 128, CLOCK_HZ)
        self.state: DramState = new_dram_state(self.spec)
        self.counters = np.zeros(len(MemoryCounter), np.int64)

    def read(self, t_ns: float, unit: int, atoms: int = 1, channel: int = 0) -> float:
        return self._ns(dram_read(self.spec, self.state, self.counters, int(t_ns * NS), channel, unit, atoms))

    def write(self, t_ns: float, unit: int, atoms: int = 1, channel: int = 0) -> float:
        return self._ns(dram_write(self.spec, self.state, self.counters, int(t_ns * NS), channel, unit, atoms))

    def unit(self, bank: int, nth: int = 0) -> int:
        """First unit of the n-th row of a bank."""
        rows = [row for row in range(4096) if bank_of(self.spec, row) == bank]
        return rows[nth] * UNITS_PER_ROW

    def count(self, name: str) -> int:
        return int(self.counters[MemoryCounter[name]])

    @staticmethod
    def _ns(ticks: int) -> float:
        return int(ticks) / NS


TICK_NS = 1 / NS


def test_closed_and_open_row() -> None:
    memory = Memory()
    assert memory.read(0, memory.unit(3)) == 114
    assert memory.read(20, memory.unit(3) + 1) == 120
    assert (memory.count("DRAM_ROW_MISSES"), memory.count("DRAM_ROW_HITS")) == (1, 1)


@pytest.mark.parametrize(("t_rc_ps", "closes"), [(48_000, 33), (40_000, 33), (60_000, 45)])
def test_row_closes_after_tras_without_requests(t_rc_ps: int, closes: int) -> None:
    """Or when its bank has just time to be ready for another row (tRC less tRP), if that is later."""
    memory = Memory(t_rc_ps=t_rc_ps)
    memory.read(0, memory.unit(3))
    assert memory.read(closes, memory.unit(3)) == closes + 100
    memory = Memory(t_rc_ps=t_rc_ps)
    memory.read(0, memory.unit(3))
    again = max(t_rc_ps / 1000, closes + 15)  # tRC after the first activate, tRP after the precharge
    assert memory.read(closes + TICK_NS, memory.unit(3)) == pytest.approx(again + 14 + 100, abs=0.1)


def test_bus_moves_one_burst_after_the_other() -> None:
    memory = Memory()
    memory.read(0, memory.unit(3), 4)  # the bus is booked from 0 to 4 ns, although the row opens later
    memory.read(0, memory.unit(4), 4)
    assert memory.read(100, memory.unit(5), 4) == 100 + 14 + 3 + 100
    busy = [memory.read(200, memory.unit(6), 4) for _ in range(20)]
    assert busy[-1] == 200 + 20 * 4 - 1 + 100
    assert memory.read(279, memory.unit(6)) == 280 + 100
    assert memory.read(281, memory.unit(6)) == 281 + 100


def test_row_cycle_of_one_bank() -> None:
    memory = Memory()
    memory.read(0, memory.unit(3))
    assert memory.read(50 - TICK_NS, memory.unit(3, 1)) == 50 + 14 + 100
    assert memory.count("DRAM_ROW_CONFLICTS") == 1
    memory = Memory()
    memory.read(0, memory.unit(3))
    assert memory.read(50, memory.unit(3, 1)) == 50 + 14 + 100
    assert memory.count("DRAM_ROW_CONFLICTS") == 0


def test_precharge_waits_for_the_last_data_of_the_row() -> None:
    memory = Memory(t_rc_ps=20_000, t_ras_ps=20_000)
    memory.read(0, memory.unit(3))
    memory.read(19, memory.unit(3), 4)  # data until 23
    assert memory.read(19, memory.unit(3, 1)) == 23 + 15 + 14 + 100


def test_requests_join_a_pending_row_before_it_opens() -> None:
    memory = Memory()
    memory.read(0, memory.unit(3))
    memory.read(1, memory.unit(3, 1))  # opens at 50
    assert memory.read(2, memory.unit(3, 1) + 1) == 50 + 14 + 100
    assert memory.count("DRAM_ROW_HITS") == 1


def test_a_busy_bank_does_not_hold_up_another() -> None:
    memory = Memory()
    memory.read(0, memory.unit(3))
    memory.read(0, memory.unit(3, 1))
    assert memory.read(2, memory.unit(4)) == 2 + 14 + 100


def test_a_read_waits_for_a_place_in_its_channels_queue() -> None:
    for places, answer in ((3, 2 + 14), (2, 14 + 1 + 14)):  # the first two end at 15, when the row has opened
        memory = Memory(queue=places)
        for bank in (3, 4):
            memory.read(0, memory.unit(bank))
        memory.read(1, memory.unit(3), channel=1)  # another channel's queue
        assert memory.read(2, memory.unit(5)) == answer + 100


def test_a_short_queue_slows_rows_of_random_banks_and_not_neighbours() -> None:
    def ns_a_read(units: Iterable[int], places: int) -> float:
        memory = Memory(queue=places)
        return (max(memory.read(0, int(unit), 4) for unit in units) - 100) / 2000

    random = np.random.default_rng(1).permutation(2000) * UNITS_PER_ROW
    assert ns_a_read(random, 8) > 1.2 * ns_a_read(random, 64)
    assert ns_a_read(range(2000), 8) == pytest.approx(ns_a_read(range(2000), 64), rel=0.03)  # they share rows


def test_five_activates_need_the_four_activate_window() -> None:
    memory = Memory(t_faw_ps=40_000)
    answers = [memory.read(0, memory.unit(bank)) for bank in range(5)]
    assert answers[4] == 40 + 14 + 100
    assert memory.read(50 - TICK_NS, memory.unit(5)) == 50 + 14 + 100
    assert memory.read(60, memory.unit(6)) == 60 + 14 + 100


def test_bursts_of_one_row_keep_the_channel_from_the_next_one() -> None:
    def answers(atoms: int, t_faw_ps: int = 16_000) -> list[float]:
        memory = Memory(t_faw_ps=t_faw_ps, t_ccd_ps=10_000)
        return [memory.read(0, memory.unit(bank), atoms) for bank in range(3)]

    bursts = Memory().spec.burst / NS
    whole, half = answers(4), answers(2)
    # Four bursts take 40 ns, two 20; one is bound by the window of activates.
    assert [x - whole[0] for x in whole] == pytest.approx([0, 40, 80])
    assert [x - half[0] for x in half] == pytest.approx([0, 20, 40])
    assert [x - answers(1, 60_000)[0] for x in answers(1, 60_000)] == pytest.approx([0, 15, 30])
    assert whole[0] - half[0] == pytest.approx(2 * bursts)
    # A second line of an open row keeps nobody waiting but by the data bus.
    memory = Memory(t_ccd_ps=10_000)
    for place in range(2):
        assert memory.read(0, memory.unit(0) + place, 4) - whole[0] < 10
    assert memory.read(0, memory.unit(1), 4) - whole[0] == pytest.approx(40)


def test_bank_under_refresh_is_away_and_its_neighbour_is_not() -> None:
    memory = Memory(t_refi_ps=1_600_000, t_rfc_ps=80_000)
    first = 100 * 4  # bank 3 of 16 is refreshed at 4 * tREFI / 16
    assert memory.read(first - TICK_NS, memory.unit(3)) == first - TICK_NS + 114
    for t_ns in (first, first + 80 - TICK_NS, first + 1600):
        memory = Memory(t_refi_ps=1_600_000, t_rfc_ps=80_000)
        assert memory.read(t_ns, memory.unit(3)) == first + (1680 if t_ns > 1000 else 80) + 114
        assert memory.count("DRAM_REFRESH_WAITS") == 1
    assert memory.read(first + 1680, memory.unit(5, 1)) == first + 1680 + 114
    memory = Memory(t_refi_ps=1_600_000, t_rfc_ps=80_000)
    assert memory.read(first + 80, memory.unit(3)) == first + 80 + 114


def test_channels_refresh_one_bank_after_the_other_and_do_not_wait_for_a_kernel() -> None:
    memory = Memory(t_refi_ps=1_600_000, t_rfc_ps=80_000)
    channels = memory.spec.channels
    assert channels > 1
    for channel in range(channels):
        first = 100 * 4 + 100 * channel / channels  # bank 3 of 16, each channel a share of the bank's turn later
        for t_ns, ready in ((first - TICK_NS, first - TICK_NS), (first, first + 80), (first + 80, first + 80)):
            memory = Memory(t_refi_ps=1_600_000, t_rfc_ps=80_000)
            assert memory.read(t_ns, memory.unit(3), channel=channel) == ready + 114
    assert memory.read(0, memory.unit(15)) == 80 + 114  # the last bank's refresh, one interval before its first turn


def test_more_banks_leave_the_refreshes_of_the_first_where_they_are() -> None:
    """Those of a second and a third rank lie between, none at the time of another."""
    t_refi, times = 1_600_000, {}
    for banks in (16, 17, 24, 32, 48, 64):
        spec = Memory(banks=banks, t_refi_ps=t_refi, t_rfc_ps=80_000).spec
        times[banks] = [int(refresh_at(spec, 0, bank)) for bank in range(banks)]
    assert all(of == times[64][:banks] for banks, of in times.items())
    assert times[16] == [100 * (bank + 1) * NS for bank in range(16)]
    for banks in (32, 48, 64):
        interval = t_refi // 1000 * NS
        within = sorted(time % interval for time in times[banks])
        gaps = np.diff([*within, within[0] + interval])
        assert interval / banks / 2 < min(gaps) <= max(gaps) < 1.7 * interval / banks


def test_bus_turns_round_for_a_batch_of_writes_and_back() -> None:
    memory = Memory(write_batch=8)
    memory.read(0, memory.unit(3), 4)  # bus until 4
    for k in range(7):
        memory.write(0, memory.unit(4) + k)
    assert memory.count("DRAM_TURN_ROUNDS") == 0
    memory.write(0, memory.unit(4) + 7)  # tRTW: data from 9 to 17
    assert memory.read(9, memory.unit(5)) == 17 + 9 + 100  # tWTR
    assert memory.count("DRAM_TURN_ROUNDS") == 2
    memory = Memory(write_batch=8)
    for k in range(8):
        memory.write(0, memory.unit(4) + k)  # tRTW from an idle bus: data from 5 to 13
    assert memory.read(22 + TICK_NS, memory.unit(5)) == 22 + TICK_NS + 14 + 100


def test_write_buffer_takes_two_batches() -> None:
    memory = Memory(write_batch=8)
    accepted = [memory.write(0, memory.unit(4) + k % 8) for k in range(25)]
    assert accepted[:16] == [0.0] * 16
    assert accepted[16:24] == [13.0] * 8  # the first batch: tRTW and 8 bursts
    assert accepted[24] == 21.0


@pytest.mark.parametrize("write_batch", [8, 32])
def test_channels_are_independent(write_batch: int) -> None:
    memory = Memory(write_batch=write_batch)
    for k in range(64):
        memory.write(0, memory.unit(4) + k, channel=1)
        memory.read(0, memory.unit(4) + k, channel=1)
    assert memory.read(0, memory.unit(3), channel=0) == 114
    assert memory.count("DRAM_WRITE_BYTES") == 64 * 32


def test_settling_closes_rows_and_keeps_buffered_writes() -> None:
    memory = Memory(write_batch=8)
    for k in range(7):
        memory.write(1000, memory.unit(4) + k)
    memory.read(1000, memory.unit(3), 4)
    settle_dram(memory.state)
    assert memory.read(0, memory.unit(3)) == 114
    memory.write(0, memory.unit(4))
    assert memory.count("DRAM_TURN_ROUNDS") == 1


def test_writes_that_change_check_bits_hold_the_bus_for_longer() -> None:
    plain, checked = Memory(t_rtw_ps=0), Memory(t_rtw_ps=0, write_overhead=0.5)
    assert checked.spec.write_burst == 2 * checked.spec.burst
    batch = plain.spec.write_batch
    for memory in (plain, checked):
        for unit in range(batch):
            memory.write(0, unit)
    # A read after one batch waits for the bus: for as long again where writes take twice the time.
    plain_end, checked_end = (memory.read(0, 10_000) for memory in (plain, checked))
    assert checked_end - plain_end == batch * plain.spec.burst / NS


def test_every_page_policy_is_a_word_of_the_machine() -> None:
    assert get_args(PagePolicy) == POLICIES


def test_a_closed_page_is_opened_for_each_access() -> None:
    memory = Memory(page_policy="closed")
    assert memory.read(0, memory.unit(3)) == 114
    assert memory.read(20, memory.unit(3) + 1) == 50 + 14 + 100  # tRC, and activated again
    assert memory.read(300, memory.unit(3)) == 414
    assert [memory.count(f"DRAM_ROW_{name}") for name in ("HITS", "MISSES", "CONFLICTS")] == [0, 2, 1]


def test_a_closed_page_precharges_after_its_data() -> None:
    memory = Memory(page_policy="closed", t_rc_ps=20_000, t_ras_ps=5_000)
    memory.read(0, memory.unit(3), 4)  # data from 14 to 18
    assert memory.read(0, memory.unit(3)) == 18 + 15 + 14 + 100


def test_accesses_to_different_rows_do_not_care_for_the_page_policy() -> None:
    answers = []
    for policy in POLICIES:
        memory = Memory(page_policy=policy)
        answers.append([memory.read(k * 7, memory.unit(k % 16, k // 16)) for k in range(64)])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("bank", [0, 5])
def test_all_banks_are_refreshed_at_once(bank: int) -> None:
    """Of one channel a refresh has just ended at tick 0, so that the first one ends after an interval."""
    figures = load_arch("gemmini", {"dram.refresh": "all", "dram.t_refi": "1.6 us", "dram.t_rfc": "80 ns"}).dram
    spec = lower_dram(figures, 128, CLOCK_HZ)
    row = next(row for row in range(1024) if bank_of(spec, row) == bank)
    unit, data = row * (figures.row_bytes // 128), spec.rcd + spec.latency
    for at, ready in ((0, 0), (1519, 1519), (1520, 1600), (1599, 1600), (1600, 1600), (3120, 3200)):
        state, counters = new_dram_state(spec), np.zeros(len(MemoryCounter), np.int64)
        assert dram_read(spec, state, counters, at * NS, 0, unit, 1) - data == ready * NS


# ---- every standard, constraint by constraint, at a clock of which a tick is a picosecond


class Standard:
    """External memory of a machine that names a DRAM standard: one channel; times in ps."""

    CLOCK_HZ = 10**12 // TICKS_PER_CYCLE

    def __init__(self, name: str, write_batch: int = 8, refresh: bool = False) -> None:
        figures: dict[str, Any] = {"dram.standard": name, "dram.write_batch": write_batch, "dram.overhead": 0}
        if not refresh:
            figures["dram.t_rfc"] = 0
        self.figures = load_arch("t4", figures).dram
        self.spec = lower_dram(self.figures, 128, self.CLOCK_HZ)
        self.state = new_dram_state(self.spec)
        self.counters = np.zeros(len(MemoryCounter), np.int64)
        self.units = self.figures.row_bytes // 128

    def read(self, t: int, bank: int, row: int = 0) -> int:
        """Tick at which the row's column could be read, for a request of one burst at tick t."""
        return int(dram_read(self.spec, self.state, self.counters, t, 0, self._unit(bank, row), 1)) - self.spec.latency

    def write(self, t: int, bank: int, row: int = 0) -> int:
        """Tick at which the write buffer takes a burst."""
        return int(dram_write(self.spec, self.state, self.counters, t, 0, self._unit(bank, row), 1))

    def row(self, bank: int, nth: int = 0) -> int:
        """The n-th row of a bank."""
        return [row for row in range(1024) if bank_of(self.spec, row) == bank][nth]

    def _unit(self, bank: int, row: int) -> int:
        return self.row(bank, row) * self.units


@pytest.fixture(params=list_standards())
def standard(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_standard_rcd_activate_to_read(standard: str) -> None:
    t_rcd = Standard(standard).figures.t_rcd_ps
    for early, waited in ((1, 1), (0, 0)):  # blocked at t - 1, ready at t
        memory = Standard(standard)
        assert memory.read(0, bank=3) == t_rcd
        memory.state.channel[:] = 0  # the bus is free
        assert memory.read(t_rcd - early, bank=3) == t_rcd - early + waited


def test_standard_rc_activate_to_activate_of_a_bank(standard: str) -> None:
    t_rc, t_rcd = Standard(standard).figures.t_rc_ps, Standard(standard).figures.t_rcd_ps
    for early, waited in ((1, 1), (0, 0)):
        memory = Standard(standard)
        memory.read(0, bank=3)
        assert memory.read(t_rc - early, bank=3, row=1) == t_rc - early + waited + t_rcd


def test_standard_ras_a_row_stays_open(standard: str) -> None:
    t_ras, t_rc, t_rcd = (getattr(Standard(standard).figures, name) for name in ("t_ras_ps", "t_rc_ps", "t_rcd_ps"))
    memory = Standard(standard)
    memory.read(0, bank=3)
    assert memory.read(t_ras, bank=3) == max(t_ras, t_rcd)
    memory = Standard(standard)
    memory.read(0, bank=3)
    assert memory.read(t_ras + 1, bank=3) == t_rc + t_rcd  # closed by then


def test_standard_rp_precharge_to_activate(standard: str) -> None:
    memory = Standard(standard)
    memory.read(0, bank=3)
    at = memory.figures.t_ras_ps  # a read that joins keeps the row open until its data end
    closed = memory.read(at, bank=3) + memory.spec.burst
    ready = max(closed + memory.figures.t_rp_ps, memory.figures.t_rc_ps)
    assert memory.read(at, bank=3, row=1) == ready + memory.figures.t_rcd_ps


def test_standard_faw_five_activates(standard: str) -> None:
    figures = Standard(standard).figures
    for early, waited in ((1, 1), (0, 0)):
        memory = Standard(standard)
        for bank in range(4):
            memory.read(0, bank=bank)
        at = figures.t_faw_ps - early
        assert memory.read(at, bank=4) == at + waited + figures.t_rcd_ps


def test_standard_wtr_and_rtw_turn_the_bus_round(standard: str) -> None:
    figures = Standard(standard).figures
    for early, waited in ((1, 1), (0, 0)):
        memory = Standard(standard)
        for _ in range(8):
            memory.write(0, bank=4)
        written = figures.t_rtw_ps + 8 * memory.spec.write_burst
        at = written + figures.t_wtr_ps - early
        # A row that is open by then: its data wait for the bus alone.
        memory.state.bank[:] = 0
        memory.state.bank.reshape(-1, BANK_WORDS)[5, 2:5] = (memory.row(5), 0, 1 << 40)
        assert memory.read(at, bank=5) == at + waited


@pytest.mark.parametrize("bank", [0, 3])
def test_standard_refi_and_rfc_a_bank_is_away(standard: str, bank: int) -> None:
    figures = Standard(standard, refresh=True).figures
    first = (bank + 1) * (figures.t_refi_ps // min(16, figures.banks))
    for at, ready in (
        (first - 1, first - 1),
        (first, first + figures.t_rfc_ps),
        (first + figures.t_rfc_ps - 1, first + figures.t_rfc_ps),
        (first + figures.t_rfc_ps, first + figures.t_rfc_ps),
        (first + figures.t_refi_ps, first + figures.t_refi_ps + figures.t_rfc_ps),
    ):
        assert Standard(standard, refresh=True).read(at, bank=bank) == ready + figures.t_rcd_ps
