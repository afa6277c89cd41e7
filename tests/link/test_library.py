"""Collectives of libraries: the numbers are right, the choice is the library's, and times have their parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from arch.errors import InputError
from arch.load import load_arch
from sim.app.run import row_request, simulate
from sim.link import custom, nccl
from sim.link.library import KINDS, Algorithm, Kind, Plan, Wire, run
from workloads.silicon import packaged_rows

GB, US = 10**9, 10**6
WIRE = Wire("Simple", US, 100 * GB, 50 * GB, 2, 2 * US, read_ps=3 * US, asked_bytes_per_s=80 * GB)

FLAT = (
    "slots.peer=25 GB/s", "slots.bridge_devices=8", "slots.bridge_flow=25 GB/s", "slots.bridge=25 GB/s",
    "slots.socket_devices=8", "slots.socket_flow=25 GB/s", "slots.socket=25 GB/s",
)  # fmt: skip
"""A node whose devices are all below one bridge."""


def plan(kind: Kind, algorithm: Algorithm, devices: int, elements: int, **changes: object) -> Plan:
    """A small collective of 8-byte values, its chunks less than its parts."""
    made = Plan(kind, algorithm, devices, 8 * elements, WIRE, 3, 16, 0)
    return made._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("devices", [2, 3, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_device_ends_with_what_it_should(kind: Kind, devices: int) -> None:
    n = 24 * devices
    rng = np.random.default_rng(devices)
    size = n // devices if kind == "all_gather" else n
    values = [rng.integers(-9, 9, size).astype(float) for _ in range(devices)]
    total = np.sum(values, axis=0) if kind != "all_gather" else np.zeros(1)
    expected = {
        "all_reduce": [total] * devices,
        "reduce_scatter": np.array_split(total, devices),
        "all_gather": [np.concatenate(values)] * devices,
        "alltoall": [np.concatenate([np.array_split(v, devices)[d] for v in values]) for d in range(devices)]
        if kind == "alltoall"
        else [],
    }[kind]
    algorithms: tuple[Algorithm, ...] = ("pairwise",) if kind == "alltoall" else ("ring",)
    if kind == "all_reduce":
        algorithms = ("ring", "nvls", "multimem", "one_shot", "two_shot", "push")
    for algorithm in algorithms:
        found = run(plan(kind, algorithm, devices, n), values).values
        for got, right in zip(found, expected, strict=True):
            assert np.array_equal(got, right), algorithm


def test_a_ring_sends_its_parts_and_announces_its_slices() -> None:
    made = plan("all_reduce", "ring", 4, 3 * 10**6, chunk_bytes=2**30, start_ps=5 * US)
    ended = run(made)
    assert ended.sent_bytes == 6 * 6 * 10**6
    # Six steps of two slices; latencies hide behind slices of 30 us. One part is stored here as well.
    sending, copying = ended.sent_bytes * 1000 // 100, 6 * 10**6 * 1000 // 150
    assert ended.time_ps == 5 * US + sending + 12 * 2 * US + copying + US
    short = run(made._replace(size_bytes=4 * 64))
    assert short.time_ps >= 5 * US + 6 * (2 * US + US)


def test_a_flagged_ring_takes_values_out_of_its_buffer_as_it_hands_them_on() -> None:
    # A step moves 3 MB: 30 us through the port, 60 us for three channels that store it here as well.
    wire = Wire("LL", US, 100 * GB, 50 * GB // 3)
    made = plan("all_gather", "ring", 4, 12 * 10**6 // 8, wire=wire, chunk_bytes=2**30, start_ps=5 * US)
    assert run(made).time_ps == pytest.approx(5 * US + 3 * (60 * US + US) + 60 * US, abs=100)
    # Until a part is whole it is added up and handed on, and only its last step stores it.
    scattered = made._replace(kind="reduce_scatter")
    assert run(scattered).time_ps == pytest.approx(5 * US + 3 * (30 * US + US) + 60 * US, abs=100)
    summed = made._replace(kind="all_reduce")
    assert run(summed).time_ps == pytest.approx(5 * US + 3 * 31 * US + 3 * 61 * US + 60 * US, abs=100)
    # Lines go through shared memory in every step.
    lines = scattered._replace(wire=wire._replace(protocol="LL128"))
    assert run(lines).time_ps == pytest.approx(run(made).time_ps, abs=100)


def test_copies_of_later_rounds_lie_beside_what_other_channels_send() -> None:
    # 3 MB a step and round: 30 us through the port; three channels at 50 GB/s copy it in 20 us.
    made = plan("reduce_scatter", "ring", 2, 6 * 10**6 // 8, chunk_bytes=10**6, start_ps=0)
    first = run(made).time_ps
    assert first == pytest.approx(30 * US + 2 * 2 * US + 20 * US, abs=10)
    # A CTA has 10 us of a round left for its copy.
    second = run(made._replace(size_bytes=2 * made.size_bytes)).time_ps - first
    assert second == pytest.approx(30 * US + 2 * 2 * US + 10 * US, abs=10)
    # Of the three steps of four devices it has more than the copy takes.
    four = plan("reduce_scatter", "ring", 4, 12 * 10**6 // 8, chunk_bytes=10**6, start_ps=0)
    more = run(four._replace(size_bytes=2 * four.size_bytes)).time_ps - run(four).time_ps
    assert more == pytest.approx(3 * (30 * US + 2 * 2 * US), abs=4 * US)


def test_a_kernel_starts_by_what_it_sends_with() -> None:
    spec = load_arch("h100-sxm", {"collectives.spread": 0})
    figures = spec.collectives

    def start_ps(kind: Kind, gpus: int, size: int, algorithm: str, protocol: str) -> int:
        return nccl.plan(spec, kind, gpus, size, algorithm, protocol).start_ps

    several = figures.start_ps + figures.several_ps
    assert start_ps("all_gather", 2, 8192, "ring", "LL") == figures.start_ps
    assert start_ps("all_gather", 2, 16384, "ring", "LL") == several
    # One message to one other device goes through one CTA.
    assert start_ps("alltoall", 2, 2048, "pairwise", "LL") == figures.start_ps
    assert start_ps("alltoall", 4, 2048, "pairwise", "LL") == several
    assert start_ps("all_reduce", 8, 2**26, "nvls", "Simple") == several
    # Neighbours store into results where nothing has to be added to what they send.
    assert start_ps("reduce_scatter", 4, 2**26, "ring", "Simple") == several
    assert start_ps("all_gather", 4, 2**26, "ring", "Simple") == several + figures.direct_ps
    assert start_ps("all_reduce", 2, 2**26, "ring", "Simple") == several + figures.direct_ps


def test_a_collective_waits_for_the_device_that_begins_last() -> None:
    """Above the mean by the largest of so many draws: 0.59, 1.05 and 1.43 standard deviations."""
    at_once = load_arch("h100-sxm", {"collectives.spread": 0})
    apart = load_arch("h100-sxm", {"collectives.spread": US})
    for gpus, above in ((2, 0.589), (4, 1.049), (8, 1.434)):
        later = [nccl.plan(spec, "all_gather", gpus, 4096, "ring", "LL").start_ps for spec in (at_once, apart)]
        assert later[1] - later[0] == pytest.approx(above * US, rel=0.006)
        lean = [custom.plan(spec, "vllm", gpus, 4096) for spec in (at_once, apart)]
        assert [made.start_ps - later[n] for n, made in enumerate(lean) if made] == [
            at_once.collectives.lean_start_ps - at_once.collectives.start_ps
        ] * 2


def test_what_the_switch_added_up_is_copied_share_by_share() -> None:
    # Three groups on one part of 1 MB: two copies at 150 GB/s, the second behind a flag of each of 4. To a device
    # go 1 MB at 80 GB/s, sums and others' requests, and answers for its share at 100.
    made = plan("all_reduce", "nvls", 4, 125_000, chunk_bytes=10**6, start_ps=5 * US)
    copied, through, announced = 10**12 // 150_000 + 1, 12_500_000 + 2_500_000, 2 * US + US
    assert run(made).time_ps == 5 * US + 2 * (copied + announced) + 4 * US + through
    # Of more parts the slowest group bounds each: announcing keeps no group busy.
    more = run(made._replace(size_bytes=5 * 10**6)).time_ps - run(made).time_ps
    assert more == 4 * through


def test_threads_add_up_words_through_the_switch_in_rounds() -> None:
    made = plan("all_reduce", "multimem", 4, 125_000, chunk_bytes=10**6, start_ps=5 * US)
    # A flag set by compare-and-swap comes back; a load goes there and its answer comes back; the last stores are
    # acknowledged.
    around = 2 * US + 3 * US + 3 * US + 2 * US
    assert run(made).time_ps == 5 * US + around + 15 * US
    assert run(made._replace(size_bytes=3 * 10**6)).time_ps == 5 * US + around + 3 * 15 * US
    # A round takes what a load takes at least.
    assert run(made._replace(size_bytes=3 * 8000, chunk_bytes=8000)).time_ps == 5 * US + around + 3 * 3 * US


def test_parts_for_the_switch_shrink_step_by_step() -> None:
    """Each bound is for the part that the one before has left (NCCL's `calcCollChunking`)."""
    spec, mib = load_arch("h100-sxm"), 2**20

    def parts(gpus: int, size: int) -> float:
        return nccl.plan(spec, "all_reduce", gpus, size, "nvls", "Simple").chunk_bytes / mib

    assert [parts(8, size * mib) for size in (7, 8, 63, 64, 1023, 1024)] == [2, 4, 4, 8, 8, 16]
    assert [parts(4, size * mib) for size in (3, 4, 31, 32, 511, 512)] == [1, 2, 2, 4, 4, 8]


def test_others_requests_lie_beside_the_sums_that_the_switch_writes() -> None:
    """258 to 264 GB/s over 8 GPUs, 233 to 241 over 4: the measured slopes are 263 and 237."""
    spec = load_arch("h100-sxm")
    for gpus, least, most in ((8, 258, 268), (4, 231, 243)):
        small, large = (
            run(nccl.plan(spec, "all_reduce", gpus, size, "nvls", "Simple")).time_ps for size in (2**30, 2**31)
        )
        assert least < 2**30 / (large - small) * 1000 < most


@pytest.mark.parametrize(
    ("arch", "kind", "gpus", "kib", "chosen"),
    [
        ("h100-sxm", "all_reduce", 8, 64, "nccl ring LL"),
        ("h100-sxm", "all_reduce", 8, 65536, "nccl nvls Simple"),
        ("h100-sxm", "all_reduce", 2, 65536, "nccl ring Simple"),
        ("h100-sxm", "all_gather", 8, 8192, "nccl ring LL128"),
        ("a100-sxm4-80gb", "all_reduce", 8, 65536, "nccl ring Simple"),
        ("a100-sxm4-80gb", "all_reduce", 4, 2048, "nccl ring LL128"),
        ("a100-sxm4-80gb", "alltoall", 8, 64, "nccl pairwise LL"),
    ],
)
def test_nccl_chooses_by_its_own_model(arch: str, kind: Kind, gpus: int, kib: int, chosen: str) -> None:
    assert str(nccl.estimates(load_arch(arch), kind, gpus, kib * 1024)[0]) == chosen


@pytest.mark.parametrize(
    ("gpus", "kib", "protocols", "channels"),
    [
        (8, 8 * 16, ("LL", "LL"), 8),
        (8, 8 * 32, ("LL", "Simple"), 8),
        (4, 4 * 256, ("LL", "Simple"), 8),
        (2, 2 * 256, ("LL", "Simple"), 16),
        (8, 8 * 512, ("LL", "Simple"), 8),
        (2, 2 * 520, ("Simple", "Simple"), 9),
    ],
)
def test_messages_between_two_go_flagged_by_what_a_channel_carries(
    gpus: int, kib: int, protocols: tuple[str, str], channels: int
) -> None:
    spec, size = load_arch("a100-sxm4-80gb"), 1024 * kib
    old, new = (nccl.estimates(spec, "alltoall", gpus, size, name)[0] for name in ("nccl-2.27", "nccl"))
    assert (old.protocol, new.protocol) == protocols
    assert nccl.plan(spec, "alltoall", gpus, size, "pairwise", old.protocol).channels == channels


def test_a_message_goes_through_the_port_and_a_chunk_of_it_through_a_buffer() -> None:
    made = plan("alltoall", "pairwise", 4, 4 * 10**6, chunk_bytes=10**6, start_ps=5 * US)
    ended = run(made)
    assert ended.sent_bytes == 24 * 10**6
    # Both ends announce; 24 MB at 100 GB/s, and 1 MB at 50 before or after them.
    assert ended.time_ps == 5 * US + 2 * (US + 2 * US) + 240 * US + 20 * US
    # Flagged values are passed on as they come.
    flagged = made._replace(wire=WIRE._replace(post_ps=0))
    assert run(flagged).time_ps == 5 * US + 2 * US + 240 * US
    slow = run(flagged._replace(wire=WIRE._replace(post_ps=0, channel_bytes_per_s=2 * GB)))
    assert slow.time_ps == 5 * US + 2 * US + 500 * US


def test_a100_reads_what_others_store() -> None:
    made = {
        name: nccl.plan(load_arch(name), "alltoall", 8, 2**27, "pairwise", "Simple")
        for name in ("a100-sxm4-80gb", "h100-sxm")
    }
    for name, ways in (("a100-sxm4-80gb", 2), ("h100-sxm", 1)):
        spec = load_arch(name)
        share = made[name].wire.port_bytes_per_s / spec.link.bandwidth_bytes_per_s
        assert share == pytest.approx(128 / (128 + ways * spec.collectives.header_bytes), abs=1e-6), name
    assert {one.chunk_bytes for one in made.values()} == {512 * 1024}


def test_messages_that_share_a_channel_share_its_warps() -> None:
    spec = load_arch("h100-sxm")
    rates = {}
    for gpus, kib in ((8, 8 * 64), (8, 8 * 128), (4, 4 * 512)):
        made = nccl.plan(spec, "alltoall", gpus, 1024 * kib, "pairwise", "Simple")
        rates[gpus, kib] = made.wire.channel_bytes_per_s / spec.collectives.warp_bytes_per_s
    assert list(rates.values()) == [10, 5, 3]
    # PCIe has two channels, which carry four messages each.
    over_pcie = nccl.plan(load_arch("a40", FLAT), "alltoall", 8, 2**20, "pairwise", "Simple")
    assert over_pcie.channels == 2
    assert over_pcie.wire.channel_bytes_per_s == 3 * load_arch("a40").collectives.warp_bytes_per_s


def test_loads_from_other_devices_are_at_once_or_one_after_the_other() -> None:
    # 1 MB at once: two barriers of 1 us, and a load of 3 us before its bytes, 3 MB of them at 100 GB/s.
    one = plan("all_reduce", "one_shot", 4, 10**6 // 8, chunk_bytes=10**6, start_ps=5 * US)
    assert run(one).time_ps == 5 * US + 2 * US + 3 * US + 30 * US
    # What threads have on their way bounds them: 20 turns of a load.
    few = one._replace(chunk_bytes=50_000)
    assert run(few).time_ps == 5 * US + 2 * US + 20 * 3 * US
    far = few._replace(wire=WIRE._replace(read_ps=4 * US))
    assert run(far).time_ps == 5 * US + 2 * US + 20 * 4 * US
    # Of two shots, the first adds up 4 kB of each of four; the second loads from three, one after the other. Sums are
    # there for all as soon as a load's answer would be, and nobody waits for anybody in the end.
    two = plan("all_reduce", "two_shot", 4, 16_000 // 8, chunk_bytes=10**6, start_ps=5 * US)
    assert run(two).time_ps == 5 * US + 2 * US + (3 * US + 120_000) + 3 * US + 3 * 3 * US


def test_loads_from_another_device_miss_what_its_l2_does_not_hold() -> None:
    spec = load_arch("h100-sxm")
    half = spec.l2.size_bytes // 2
    held, more = (custom.plan(spec, "vllm", 2, size) for size in (half, half + 2**20))
    assert held is not None
    assert more is not None
    read_ps = spec.collectives.read_ps
    assert (held.wire.read_ps, more.wire.read_ps) == (read_ps, read_ps + spec.dram.latency_ps)
    assert held.chunk_bytes == 36 * 512 * 16


def test_frameworks_choose_by_size() -> None:
    spec, mib = load_arch("h100-sxm"), 2**20

    def algorithm(library: str, gpus: int, size: int) -> str:
        made = custom.plan(spec, library, gpus, size)
        return made.algorithm if made else "nccl"

    assert [algorithm("vllm", 4, s) for s in (mib // 4, mib, 64 * mib)] == ["one_shot", "two_shot", "nccl"]
    assert [algorithm("vllm", 8, s) for s in (mib // 8, mib, 128 * mib)] == ["one_shot", "multimem", "nccl"]
    assert [algorithm("trtllm", 2, s) for s in (mib, 32 * mib)] == ["push", "nccl"]


def test_a_sum_in_the_switch_lies_between_two_copies() -> None:
    spec, size = load_arch("h100-sxm"), 2**20
    made = custom.plan(spec, "vllm", 8, size)
    assert made is not None
    text, launch = "all_reduce gpus=8 elements=524288 dtype=bf16", spec.launch
    copy_ps = launch.kernel_ps + spec.dram.latency_ps + launch.drain_ps + 2 * size * US * US // 3_352_000_000_000
    time_ps = simulate(text, "h100-sxm", schedule="vllm", scope="kernel").record.time_ps
    assert time_ps == pytest.approx(run(made).time_ps + launch.kernel_ps + 2 * copy_ps, rel=1e-3)
    # 8 CTAs of 1024 threads have 16 bytes each, for every device.
    assert made.chunk_bytes == 8 * 1024 * 16 * 8


def test_a_collective_waits_for_the_slowest_host() -> None:
    """Above the mean by the largest of so many draws: 0.56, 1.03 and 1.42 standard deviations (of 3.7 us, here)."""
    rows = {
        row.shape.split()[0]: row
        for row in packaged_rows()
        if row.source.endswith("vllm/0.24.0") and row.schedule.endswith("eager") and "elements=1024" in row.shape
    }
    rows["gpus=8"] = replace(rows["gpus=4"], shape="gpus=8 elements=1024")
    calls = [row_request(rows[f"gpus={n}"]).bench.host_call_ps for n in (2, 4, 8)]
    assert calls == pytest.approx([(18 + 3.7 * above) * US for above in (0.564, 1.029, 1.424)], rel=0.006)


def test_a_collective_is_an_operator() -> None:
    report = simulate("all_reduce gpus=4 elements=4096", "h100-sxm", check=True, scope="stream")
    assert report.record.check is not None
    assert report.record.check.passed
    assert 5 < report.record.time_ps / US < 15
    slow = simulate("all_reduce gpus=4 elements=4096", "h100-sxm", schedule="nccl ring Simple", scope="stream")
    assert slow.record.time_ps > 2 * report.record.time_ps
    gathered = simulate("all_gather gpus=8 elements=256M", "h100-sxm")
    # Seven parts of eight leave each device at what its links carry.
    rate = 7 / 8 * 2**29 / (gathered.record.time_ps * 1e-12)
    assert 0.65 * 450e9 < rate < 0.77 * 450e9


@pytest.mark.parametrize(
    ("text", "arch", "schedule", "message"),
    [
        ("all_reduce gpus=1 elements=4", "h100-sxm", "auto", "must be at least 2"),
        ("all_gather gpus=3 elements=4", "h100-sxm", "auto", "multiple of gpus=3; nearest: 3"),
        ("all_reduce gpus=8", "h100-sxm", "auto", "needs elements or bytes"),
        ("all_reduce gpus=8 elements=4 bytes=8", "h100-sxm", "auto", "needs elements or bytes"),
        ("all_reduce gpus=8 bytes=3 dtype=fp16", "h100-sxm", "auto", "multiple of 2, the bytes of fp16"),
        ("all_reduce gpus=8 bytes=1.5B", "h100-sxm", "auto", "must be whole bytes"),
        ("all_reduce gpus=8 bytes=4XB", "h100-sxm", "auto", "'XB' in '4XB' is not a unit"),
        ("all_reduce gpus=9 elements=4", "t4", "auto", "the model of one node takes 8"),
        ("all_gather gpus=4 elements=4", "h100-sxm", "vllm", "schedule=nccl runs all_gather"),
        ("all_reduce gpus=4 elements=4", "h100-sxm", "nccl rng", "did you mean|nearest|has nccl"),
        ("all_reduce gpus=4 elements=4", "sn40l", "auto", "no schedule on sn40l"),
    ],
)
def test_what_cannot_be_asked_is_refused(text: str, arch: str, schedule: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(text, arch, schedule=schedule)


def test_messages_take_pcie_where_links_do_not_reach() -> None:
    two, eight = (nccl.path_between(load_arch("a40", FLAT), devices) for devices in (2, 8))
    assert (two.bandwidth_bytes_per_s, two.nvlink) == (56_250_000_000, True)
    assert (eight.bandwidth_bytes_per_s, eight.nvlink) == (31_500_000_000, False)
    assert not nccl.path_between(load_arch("t4"), 2).nvlink
    # Rings over PCIe have no lines of 128 bytes and few channels, and no flag is faster than PCIe.
    ways = nccl.estimates(load_arch("a40", FLAT), "all_reduce", 8, 2**20)
    assert {way.protocol for way in ways} == {"LL", "Simple"}
    made = nccl.plan(load_arch("a40", FLAT), "all_reduce", 8, 2**26, "ring", "Simple")
    assert made.channels == 2
    assert made.wire.latency_ps == load_arch("a40").pcie.latency_ps
    bus = 2 * 7 * 2**26 / 8 / (run(made).time_ps / 1e12)
    assert 0.6 * 31.5e9 < bus < 31.5e9


def test_only_switches_add_up_and_mesh_links_have_a_channel_each() -> None:
    bridged, switched = (nccl.estimates(load_arch(name), "all_reduce", 4, 2**26) for name in ("h200-nvl", "h200-sxm"))
    assert "nvls" not in {way.algorithm for way in bridged}
    assert switched[0].algorithm == "nvls"
    assert nccl.path_between(load_arch("v100-sxm2"), 8).channels == 12


def test_frameworks_kernels_want_links_between_more_than_two() -> None:
    h100 = load_arch("h100-pcie", FLAT)
    assert custom.plan(h100, "vllm", 2, 2**16) is not None
    assert custom.plan(h100, "vllm", 4, 2**16) is None
    assert custom.plan(h100, "trtllm", 4, 2**16) is None


def test_ports_carry_what_is_counted() -> None:
    made = nccl.plan(load_arch("h100-sxm"), "all_reduce", 4, 2**22, "ring", "LL")
    ended = run(made)
    for d in range(4):
        sends = [send for send in ended.sends if send.source == d]
        assert sum(send.size_bytes for send in sends) == ended.sent_bytes
        assert {send.target for send in sends} == {(d + 1) % 4}
        assert all(made.start_ps <= send.begin_ps <= send.end_ps <= ended.time_ps for send in sends)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_buffers_are_counted_by_elements_or_bytes(dtype: str) -> None:
    size = {"fp16": 2, "fp32": 4}[dtype]
    by_bytes = simulate(f"all_gather gpus=8 bytes=8GiB dtype={dtype}", "h100-sxm")
    by_elements = simulate(f"all_gather gpus=8 elements={2**33 // size} dtype={dtype}", "h100-sxm")
    assert by_bytes.record.workload == by_elements.record.workload
    assert by_bytes.time_us == by_elements.time_us
    unnamed = simulate("all_gather gpus=8 bytes=8GiB", "h100-sxm")  # of the machine's format, which moves as much
    assert unnamed.time_us == simulate("all_gather gpus=8 bytes=8GiB dtype=bf16", "h100-sxm").time_us
