"""Devices on PCIe: what holds a ring and an exchange up, and what is refused."""

from __future__ import annotations

import pytest

from arch import load_arch
from arch.errors import InputError
from sim.app.run import simulate, simulate_row
from sim.link.nccl import port_bytes_per_s
from workloads.silicon.rows import SILICON_CSV, read_rows

L40S = load_arch("l40s")
GB = 10**9


@pytest.mark.parametrize(("devices", "rate"), [(2, 19.6), (4, 4.71), (8, 1.18)])
def test_a_ring_is_as_fast_as_its_slowest_edge(devices: int, rate: float) -> None:
    assert port_bytes_per_s(L40S, devices, reads=False) == pytest.approx(rate * GB)


@pytest.mark.parametrize(
    ("devices", "rate"),
    [
        (2, 19.6),
        (4, 6.08 * 3 / 4),  # four flows out of a bridge, each device has three
        (8, 4.5 * 7 / 16),  # sixteen flows out of a socket
    ],
)
def test_an_exchange_shares_what_leaves_a_group(devices: int, rate: float) -> None:
    assert port_bytes_per_s(L40S, devices, reads=False, all_to_all=True) == pytest.approx(rate * GB, rel=1e-6)


def test_a_wider_socket_moves_what_it_bounds_alone() -> None:
    wide = load_arch("l40s", ["slots.socket_flow=4 GB/s", "slots.socket=20 GB/s"])
    times = {}
    for devices in (4, 8):
        work = f"all_reduce gpus={devices} elements=4194304 dtype=fp16"
        times[devices] = simulate(work, wide).time_us / simulate(work, L40S).time_us
    assert times[4] == 1
    assert times[8] < 0.5


def test_more_than_two_devices_without_slots_are_refused() -> None:
    assert simulate("all_reduce gpus=2 elements=4096 dtype=fp16", "rtx-4090").time_us > 0
    with pytest.raises(InputError, match=r"gpus=4: rtx-4090 does not say how 4 devices on PCIe.*nearest: 2") as error:
        simulate("all_reduce gpus=4 elements=4096 dtype=fp16", "rtx-4090")
    assert "\n" not in str(error.value)


def test_rows_of_a_server_are_a_fifth_off_in_the_mean() -> None:
    rows = read_rows(SILICON_CSV.with_name("l40s_collectives.csv"))
    assert {row.op for row in rows} == {"all_reduce", "reduce_scatter"}  # others gave the figures
    errors = [abs(simulate_row(row).time_ps * 1e-6 / row.compared_us - 1) for row in rows]
    assert sum(errors) / len(errors) < 0.20
