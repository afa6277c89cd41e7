#!/usr/bin/env python3
"""Replays published micro-benchmarks on the engine and prints simulated against measured.

    scripts/lab/microbench.py [--arch NAME ...] [--probe NAME ...] [--all] [--json]

Measurements: `microbench.csv` here, the memory probes that travel with the project and those of `probe_memory.py` on an
H100 SXM; each row names its source.
Limits: 5 % for latencies, 8 % for rates. Exit code 1 if a row is beyond its limit, 2 for wrong input. Where two sources
of one figure differ by more than the limit, the one counts whose raw data are public; rows of the other name it in the
column `contradicted_by` and are counted apart.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.load import load_arch
from scripts.lab.data import LAB
from sim.engine.clock import TICKS_PER_CYCLE
from sim.gpu.engine.api import Device, KernelResult
from sim.gpu.language import Program
from sim.gpu.power.regulator import FixedClock
from sim.host.scopes import scope_ps
from sim.memory.addresses import home_slice, index_of
from sim.memory.model import lower_memory
from workloads.gpu import micro

HERE = Path(__file__).resolve().parent
PROBES_CSV = LAB / "memory_probes.csv"
H100_CSV = LAB / "h100_probes.csv"
MACHINES = ("v100-sxm2", "t4", "a100-sxm4-40gb", "a100-sxm4-80gb", "h100-pcie", "h100-sxm", "gh200-96gb", "h200-sxm")
_DEVICES = {"V100": "v100-sxm2", "A100-40GB": "a100-sxm4-40gb", "A100-80GB": "a100-sxm4-80gb", "H100-PCIe": "h100-pcie"}
_CLOCK_MHZ = {"v100-sxm2": 1380, "a100-sxm4-40gb": 1410, "a100-sxm4-80gb": 1410, "h100-pcie": 1755}
"""Core clock that the pointer chase of the same suite reports for the same machines."""
_START_CLOCK_MHZ = {"a100-sxm4-40gb": 1095, "a100-sxm4-80gb": 1155}
"""Default applications clock (`nvidia-smi -q` of such cards), above which a card goes only after some load.

The first kernel that the streaming suite times, init of one warp, still ran at it: per CTA it takes 348 and 323 ns,
all further ones 267 to 272, which is the ratio of the clocks. V100 and H100 PCIe show no difference.
"""
_CHASE_KIB: tuple[int, ...] = (16, 95, 160, 1029, 4333, 7684, 14983, 29207, 42767, 56926, 206295)
_THREADS: tuple[int, ...] = (32, 128, 256, 512, 1024)
_STREAM_ELEMENTS = 134_217_730
"""Of each array of the suite's streaming kernels."""
_SHARED_KIB: tuple[int, ...] = (3072, 11264, 18432)
_OPCODES = {
    **{name: f"{name}.fp32" for name in ("ffma", "fadd", "fmul", "fmnmx", "ex2", "rcp", "rsq", "lg2", "sin", "tanh")},
    **{name: f"{name}.int32" for name in ("imad", "shf")},
    "lop3": "lop.int32",
    "cvt_bf16x2": "cvt.bf16",
    "cvt_f16x2": "cvt.fp16",
    "cvt_f16_f32": "cvt.fp32",
    "f2i": "cvt.int32",
    "shfl": "shfl.b32",
    "dfma": "dfma.fp64",
}
"""Instructions of `probe_memory.py` as ours; those whose step holds another instruction too have rates alone."""
_TWO_IN_A_STEP = ("rcp", "sin", "cvt_f16_f32")
_MMAS = ("fp16_k16", "bf16_k16", "fp16_k8", "tf32_k8", "int8_k32")
_H100: tuple[tuple[str, str, str, str], ...] = (
    # op, pattern of its shape, metric: probe
    ("bar_sync", "threads=*", "period", "barrier"),
    ("l1_latency", "ring=1024 *", "latency", "chase_l1"),
    ("shared_latency", "ring=*", "latency", "shared_chase_word"),
    ("l2_latency", "all 132 SMs*", "mean", "chase_l2"),
    ("null_kernel", "ctas=132 threads=128 shared=0", "stream_period", "null_stream"),
    ("null_kernel", "ctas=132 threads=128 shared=0", "graph_node_period", "null_graph"),
    ("null_kernel", "ctas=1320 threads=128 shared=0", "graph_node_period", "null_graph"),
    ("cta_rate", "ctas=132000 threads=128 *", "time_per_cta_stores", "cta_rate"),
    ("dram_read", "bytes=1073741824 threads_per_sm=64 loads=1 of 16*", "bandwidth", "dram_read"),
    ("dram_read", "bytes=4294967296 threads_per_sm=256 loads=1 of 16*", "bandwidth", "dram_read"),
    ("dram_read", "bytes=4294967296 threads_per_sm=1024 loads=1 of 16*", "bandwidth", "dram_read"),
    ("dram_read", "bytes=4294967296 threads_per_sm=256 loads=4 of 16*", "bandwidth", "dram_read"),
    ("dram_read", "bytes=4294967296 threads_per_sm=1024 loads=8 of 16*", "bandwidth", "dram_read"),
    ("dram_mix", "reads=0 writes=1 array=4294967296 threads_per_sm=1024*", "bandwidth", "dram_write"),
    ("l2_read", "footprint=4 MiB order=*", "bandwidth", "l2_read"),
    ("l2_read", "footprint=16 MiB order=*", "bandwidth", "l2_read"),
    ("l2_read", "footprint=16.50 MiB order=own share", "bandwidth", "l2_read"),
    ("l2_write", "footprint=8.25 MiB order=own share", "bandwidth", "l2_write"),
    ("l2_read_sms", "sms=1 (one SM) footprint=4 MiB order=rotated*", "bandwidth", "l2_read_sms"),
    ("l2_read_sms", "sms=16 (all of GPC 2) footprint=4 MiB order=*", "bandwidth", "l2_read_sms"),
    ("l2_write_sms", "sms=1 (one SM) own*", "bandwidth", "l2_write_sms"),
    ("l2_write_sms", "sms=16 (all of GPC 2) own*", "bandwidth", "l2_write_sms"),
    ("bulk_load", "all SMs from L2 piece=16384 depth=8*", "bandwidth", "bulk_load"),
    ("bulk_load", "all SMs from DRAM piece=16384 depth=8*", "bandwidth", "bulk_load"),
    *(("cluster_barrier", f"cluster={size} threads=128", "period", "cluster_barrier") for size in (2, 4, 8, 16)),
    ("dsmem_latency", "cluster=2 rank 0 from rank 1", "latency", "dsmem_latency"),
    ("dsmem_latency", "cluster=8 rank 0 from rank 1", "latency", "dsmem_latency"),
    *((op, f"cluster={size} ctas=128*", "bandwidth", op) for size in (2, 4) for op in ("dsmem_read", "dsmem_write")),
    *(("bulk_multicast", f"cluster={size} ctas=128*", "bandwidth", "bulk_multicast") for size in (2, 4, 8)),
)
LIMITS = {"cycles": 5.0, "us": 5.0, "ns": 5.0}
RATE_LIMIT = 8.0


@dataclass(frozen=True)
class Row:
    """One measurement: what was measured, at which size, and where it is published."""

    machine: str
    probe: str
    at: str
    value: float
    unit: str
    clock_mhz: int
    source: str
    contradicted_by: str = ""
    """The row of another source that says otherwise of the same figure; such a row is shown and counted apart."""

    @property
    def number(self) -> int:
        """The leading number of `at`: KiB, threads, warps, ways or elements."""
        return int("".join(c for c in self.at.split()[0].split("=")[-1] if c.isdigit()))

    @property
    def sizes(self) -> dict[str, int]:
        """The words of `at` that are a key and a whole number."""
        words = (word.partition("=") for word in self.at.split())
        return {key: int(value) for key, _, value in words if value.isdigit()}


def rows(every: bool) -> Iterator[Row]:
    """The measurements; every: all sizes of the memory probes, not a selection."""
    with (HERE / "microbench.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            yield Row(**{**line, "value": float(line["value"]), "clock_mhz": int(line["clock_mhz"])})  # type: ignore[arg-type]
    with PROBES_CSV.open(newline="") as file:
        for line in csv.DictReader(file):
            machine, probe = _DEVICES.get(line["device"]), line["op"]
            if machine is None or line["metric"] not in ("bandwidth", "latency_cycles"):
                continue
            shape = dict(word.split("=") for word in line["shape"].split())
            if probe == "pointer_chase":
                probe, size, unit, chosen = "chase", shape["footprint_kib"], "KiB", _CHASE_KIB
            elif probe.removeprefix("stream_") in micro.STREAMS:
                size, unit, chosen = shape["block"], "threads", _THREADS
            elif probe == "shared_footprint_read" and int(shape["footprint_kib"]) % 256 == 0:
                size, unit, chosen = shape["footprint_kib"], "KiB", _SHARED_KIB
            else:
                continue
            if every or int(size) in chosen:
                source = f"{line['source_id']} {line['url'].rsplit('/', 1)[-1]}"
                clock_mhz = _CLOCK_MHZ[machine]
                if (probe, size) == ("stream_init", "32"):
                    clock_mhz = _START_CLOCK_MHZ.get(machine, clock_mhz)
                yield Row(machine, probe, f"{size} {unit}", float(line["value"]), line["unit"], clock_mhz, source)
    yield from h100_rows()


def h100_rows() -> Iterator[Row]:
    """What `probe_memory.py` measured on an H100 SXM and the engine can run."""
    with H100_CSV.open(newline="") as file:
        for line in csv.DictReader(file):
            for probe, at in _h100_probes(line["op"], line["dtype"], line["shape"], line["metric"]):
                clock_mhz = int(line["clock_mhz"])
                yield Row("h100-sxm", probe, at, float(line["value"]), line["unit"], clock_mhz, "probe_memory.py")


def _h100_probes(op: str, dtype: str, shape: str, metric: str) -> Iterator[tuple[str, str]]:
    """Probe and place of one of its rows; none where the engine has no such kernel or it is not one of the chosen."""
    name, _, rest = shape.partition(" ")
    if op == "instruction" and name in _OPCODES:
        if metric == "latency" and name not in _TWO_IN_A_STEP:
            yield "chain", _OPCODES[name]
        elif rest == "warps=32" and name not in ("ffma", "fadd", "fmul"):  # theirs is 1 and 10 % of the probe's loop
            yield "chain_interval", _OPCODES[name]
    elif op == "mma" and name in _MMAS:
        dtype, size = name.split("_")[0], rest.split()[0]
        if metric == "latency":
            yield "mma_latency", f"{dtype}.{size}"
        elif metric == "interval" and rest.endswith("warps=16 chains=4"):
            yield "mma_interval", f"{dtype}.{size}"
    elif op == "wgmma" and rest.endswith("warpgroups=1") and metric in ("interval", "latency"):
        yield f"wgmma_{metric}" if rest.startswith("ss") else f"wgmma_rs_{metric}", f"{dtype}.{name}"
    else:
        for known, pattern, measured, probe in _H100:
            if (known, measured) == (op, metric) and fnmatchcase(shape, pattern):
                threads = name.removeprefix("threads=")
                yield probe, f"{int(threads) // 32} warps" if probe == "barrier" else shape or "all"


# ------------------------------------------------------------------------------------------------------------- probes


class Bench:
    """Runs the kernels of one machine at one clock."""

    def __init__(self, spec: GpuSpec, clock_hz: int) -> None:
        self.spec, self.clock_hz = spec, clock_hz

    def device(self) -> Device:
        """A fresh chip whose code is in its caches, as after a benchmark's first call."""
        return Device(self.spec, regulator=FixedClock(self.clock_hz), cold_launch=False)

    def ticks(self, program: Program) -> int:
        """Ticks of a program's only kernel, launch and drain left out."""
        return self.run(program).ticks

    def run(self, program: Program) -> KernelResult:
        """Its kernels one after the other on a fresh chip; the result of the last."""
        device = self.device()
        addresses = program.addresses()
        return [device.run(k, addresses, launch_ps=0, drain_ps=0) for k in program.kernels][-1]

    def cycles(self, build: Callable[[int], Program], trips: int = 200, warm: int = 200) -> float:
        """Cycles of one trip: the difference of a long and a short run."""
        return (self.ticks(build(warm + trips)) - self.ticks(build(warm))) / (TICKS_PER_CYCLE * trips)

    def rate(self, build: Callable[[int], Program], short: int, long: int, size_per_count: float) -> float:
        """`size_per_count` a second, between a run of `short` and one of `long`."""
        ticks = self.ticks(build(long)) - self.ticks(build(short))
        return (long - short) * size_per_count * self.clock_hz * TICKS_PER_CYCLE / ticks

    # ---- one method a probe

    def chase(self, row: Row, *, indexed: bool = False) -> float:
        """Cycles of a dependent load over a footprint in KiB, after three laps where it may stay in the L2."""
        footprint, l2 = row.number * 1024, self.spec.l2.size_bytes
        length = micro.chase_length(footprint, 64)
        laps = 3 * length if footprint < 2 * l2 else 4096
        loads = min(max(length, 2048), 50_000)
        return self.cycles(lambda n: micro.pointer_chase(footprint, n, indexed=indexed), loads, laps)

    def chase_indexed(self, row: Row) -> float:
        """The same where what is loaded is an index."""
        return self.chase(row, indexed=True)

    def far(self, row: Row) -> float:
        """Cycles of a load that hits in the other partition of the L2."""
        memory = lower_memory(self.spec, self.clock_hz)
        candidates = range(8000)
        first = next(iter(micro.chase_lines([0], 8000, 1).addresses().values())) >> 7
        # A stride that is coprime to the range scatters the lines.
        scattered = [(i * 3571) % len(candidates) for i in candidates]
        far = [
            line
            for line in scattered
            if home_slice(memory, first + line, index_of(memory, first + line)) >= memory.slices_per_partition
        ]
        warm_cta = self.spec.gpc.count - 1  # CTAs go to GPCs in turn: it runs in the other partition
        half = len(far) // 2
        programs = [micro.chase_lines(far[:n], len(candidates), warm_cta) for n in (half, 2 * half)]
        short, long = (self.ticks(program) for program in programs)
        return (long - short) / (TICKS_PER_CYCLE * half)

    def shared_chase(self, row: Row) -> float:
        """Cycles of a dependent load from shared memory."""
        return self.cycles(lambda n: micro.shared_chase(n, row.number))

    def shared_chase_indexed(self, row: Row) -> float:
        """The same where what is loaded is an index."""
        return self.cycles(lambda n: micro.shared_chase(n, row.number, indexed=True))

    def ldmatrix(self, row: Row) -> float:
        """Cycles of a dependent ldmatrix.x4."""
        return self.cycles(micro.ldmatrix_chain)

    def barrier(self, row: Row) -> float:
        """Cycles of a bar.sync."""
        return self.cycles(lambda n: micro.barriers(row.number, n))

    def chain(self, row: Row) -> float:
        """Cycles of a dependent vector instruction."""
        opcode, dtype = row.at.split(".")
        return self.cycles(lambda n: micro.chain(opcode, dtype, n))

    def mma_latency(self, row: Row) -> float:
        """Cycles of a dependent mma.sync."""
        dtype, shape = row.at.split(".")
        return self.cycles(lambda n: micro.mma_loop(dtype, shape, n))

    def mma_rate(self, row: Row) -> float:
        """TFLOPS of independent mma.sync, eight warps an SM."""
        dtype, shape = row.at.split(".")
        ctas, independent, warps = self.spec.sm.count, 16, 8
        flops = 2 * self.spec.instruction("mma", dtype, shape).macs * ctas * independent * warps
        return self.rate(lambda n: micro.mma_loop(dtype, shape, n, independent, warps, ctas), 100, 300, flops) / 1e12

    def wgmma_interval(self, row: Row) -> float:
        """Cycles between independent wgmma with both operands in shared memory."""
        dtype, shape = row.at.split(".")
        return self.cycles(lambda n: micro.wgmma_loop(dtype, shape, n, 1, wait=False))

    def wgmma_rs_interval(self, row: Row) -> float:
        """Cycles between independent wgmma with the first operand in registers."""
        dtype, shape = row.at.split(".")
        return self.cycles(lambda n: micro.wgmma_loop(dtype, shape, n, 1, wait=False, registers=True))

    def stream(self, row: Row) -> float:
        """GB/s of a streaming kernel with two CTAs an SM."""
        op, threads = row.probe.removeprefix("stream_"), row.number
        loads, stores = micro.STREAMS[op]
        wave = 2 * self.spec.sm.count
        # Stores reach their steady state when the L2 is full of dirty lines.
        fill = int(1.25 * self.spec.l2.size_bytes / (8 * threads * stores)) if stores else 0
        # CTAs of one length start in step and take some 20 waves to spread.
        short = max(20 * wave, fill)
        long = short + max(40 * wave, 32_000_000 // (8 * threads) if threads > 128 else 0)
        size = 8 * threads * (loads + stores)
        rate = self.rate(lambda n: micro.stream(op, self.spec, threads, n), short, long, size)
        if not row.source.startswith("gpu_benches"):
            return rate / 1e9
        # The suite's host clock covers two launches over arrays of 1 GiB and the synchronisation.
        moved = 8 * _STREAM_ELEMENTS * (loads + stores)
        launch = self.spec.launch
        duration_ps = launch.kernel_ps + round(1e12 * moved / rate) + launch.drain_ps
        return 1e3 * 2 * moved / scope_ps(self.spec, [duration_ps, duration_ps], "host")

    def dot(self, row: Row) -> float:
        """GB/s of BabelStream's dot product."""
        size = 4 * self.spec.sm.count * 1024 * 4 * 16
        return self.rate(lambda n: micro.dot(self.spec, n), 2, 6, size) / 1e9

    def shared_footprint_read(self, row: Row) -> float:
        """GB/s of all SMs reading one footprint in KiB, two CTAs of 1024 threads an SM (as many as fit)."""
        wave = self.spec.sm.max_threads // 1024 * self.spec.sm.count
        build = lambda n: micro.footprint_read(row.number // 256, n)  # noqa: E731
        return self.rate(build, 3 * wave, 6 * wave, 32 * 8192) / 1e9

    def sm_private_read(self, row: Row) -> float:
        """GB/s of all SMs, one CTA each, sweeping a buffer in KiB."""
        elements, sms = row.number * 128, self.spec.sm.count
        sweeps = max(2, 512 // row.number)
        build = lambda n: micro.private_read(elements, n, sms)  # noqa: E731
        return self.rate(build, sweeps, 2 * sweeps, 8 * elements * sms) / 1e9

    def shared_read(self, row: Row) -> float:
        """GB/s of all SMs from shared memory."""
        sms = self.spec.sm.count
        return self.rate(lambda n: micro.shared_read(n, sms), 800, 1600, 16 * 32 * 16 * sms) / 1e9

    # ---- as `probe_memory.py`, whose own words for sizes `at` holds

    def chase_l1(self, row: Row) -> float:
        """Cycles of a dependent load that hits in the L1."""
        return self.cycles(lambda n: micro.pointer_chase(128 << 10, n, 128), 2048, 1024)

    def shared_chase_word(self, row: Row) -> float:
        """Cycles of a dependent load from shared memory."""
        return self.cycles(micro.shared_chase)

    def chase_l2(self, row: Row) -> float:
        """Cycles of a dependent load that hits in the L2, from wherever; its lines have been read before."""
        return self.cycles(lambda n: micro.pointer_chase(2 << 20, n, 128), 16384, 2 * 16384)

    def chain_interval(self, row: Row) -> float:
        """Cycles of a sub-core between independent instructions of 8 warps."""
        opcode, dtype = row.at.split(".")
        return self.cycles(lambda n: micro.chain(opcode, dtype, n, 32, 8)) / 64

    def mma_interval(self, row: Row) -> float:
        """Cycles of a sub-core between independent mma.sync of 4 warps."""
        dtype, shape = row.at.split(".")
        return self.cycles(lambda n: micro.mma_loop(dtype, shape, n, 4, 16)) / 16

    def wgmma_latency(self, row: Row, *, registers: bool = False) -> float:
        """Cycles of one wgmma and the wait for it."""
        dtype, shape = row.at.split(".")
        return self.cycles(lambda n: micro.wgmma_loop(dtype, shape, n, 1, wait=True, registers=registers))

    def wgmma_rs_latency(self, row: Row) -> float:
        """The same where the first operand is in registers."""
        return self.wgmma_latency(row, registers=True)

    def null_stream(self, row: Row) -> float:
        """Microseconds from one empty kernel to the next in a stream."""
        return self._null_us(row, "stream")

    def null_graph(self, row: Row) -> float:
        """The same in a graph."""
        return self._null_us(row, "graph")

    def _null_us(self, row: Row, scope: str) -> float:
        at = row.sizes
        result = self.device().run(micro.null(at["ctas"], at["threads"] // 32).kernels[0], {})
        return scope_ps(self.spec, [result.time_ps], scope) / 1e6

    def cta_rate(self, row: Row) -> float:
        """Nanoseconds a CTA of an empty kernel of many."""
        short, long = (self.ticks(micro.null(count, row.sizes["threads"] // 32)) for count in (13_200, 66_000))
        return 1e9 * (long - short) / (52_800 * self.clock_hz * TICKS_PER_CYCLE)

    def dram_read(self, row: Row) -> float:
        """GB/s of grid-stride reads."""
        at = row.sizes
        return self._grid_stride(at["threads_per_sm"], at["loads"], int(row.at.split(" of ")[1].split()[0]), False)

    def dram_write(self, row: Row) -> float:
        """GB/s of grid-stride writes."""
        return self._grid_stride(row.sizes["threads_per_sm"], 1, 16, True)

    def _grid_stride(self, threads: int, loads: int, width: int, writes: bool) -> float:
        step = self.spec.sm.count * threads * loads * width
        short = max(4, (120 << 20 if writes else 16 << 20) // step)
        long = short + max(12, (128 << 20) // step)
        build = lambda n: micro.grid_stride(self.spec, threads, loads, width, n, writes)  # noqa: E731
        return self.rate(build, short, long, step) / 1e9

    def l2_read(self, row: Row, *, ctas: int = 0, writes: bool = False, gpc: int = 1, threads: int = 1024) -> float:
        """GB/s of SMs that read blocks of one footprint in one of four orders, or their own."""
        order = row.at.split("order=")[-1] if "order=" in row.at else "own share"
        ctas = ctas or self.spec.sm.count
        if order == "own share" and "footprint" in row.at:
            threads = 512
        block, blocks = threads * 128, ctas
        if "footprint" in row.at:
            blocks = int(float(row.at.split("footprint=")[1].split()[0]) * (1 << 20)) // block
        build = lambda n: micro.sweep(ctas, threads, blocks, n, order, writes=writes, gpc=gpc)  # noqa: E731
        # All of it has been read once, or all that one reads alone.
        once = blocks // ctas if order == "own share" else blocks // 4 if ctas > 4 else blocks
        short = max(8, 2 * once)
        return self.rate(build, short, short + max(16, once), block * ctas) / 1e9

    def l2_write(self, row: Row) -> float:
        """GB/s of all SMs that write blocks of their own again and again."""
        return self.l2_read(row, writes=True)

    def l2_read_sms(self, row: Row) -> float:
        """GB/s of one SM, or of one GPC, that reads."""
        ctas = row.sizes["sms"]
        return self.l2_read(row, ctas=ctas, gpc=ctas)

    def l2_write_sms(self, row: Row) -> float:
        """GB/s of one SM, or of one GPC, that writes."""
        ctas = row.sizes["sms"]
        return self.l2_read(row, ctas=ctas, gpc=ctas, writes=True)

    def bulk_load(self, row: Row) -> float:
        """GB/s of bulk copies by all SMs."""
        at, sms = row.sizes, self.spec.sm.count
        piece, depth = at["piece"], at["depth"]
        pieces = (16 << 20) // piece if "from L2" in row.at else 1 << 15
        return self.rate(lambda n: micro.bulk_copies(sms, piece, depth, pieces, n), 48, 144, piece * sms) / 1e9

    def bulk_multicast(self, row: Row) -> float:
        """GB/s that arrive in the SMs of clusters whose CTAs each load a part for all of them."""
        at, piece = row.sizes, 96 << 10
        build = lambda n: micro.bulk_copies(at["ctas"], piece, 2, (16 << 20) // piece, n, at["cluster"])  # noqa: E731
        return self.rate(build, 16, 48, piece * at["ctas"]) / 1e9

    def cluster_barrier(self, row: Row) -> float:
        """Cycles of a barrier of a cluster."""
        at = row.sizes
        return self.cycles(lambda n: micro.cluster_barriers(at["cluster"], at["threads"] // 32, n))

    def dsmem_latency(self, row: Row) -> float:
        """Cycles of a dependent load from another SM's shared memory."""
        return self.cycles(lambda n: micro.dsmem_chase(row.sizes["cluster"], n))

    def dsmem_read(self, row: Row, *, writes: bool = False) -> float:
        """GB/s of SMs that read the next one's shared memory."""
        at = row.sizes
        build = lambda n: micro.dsmem_reads(at["ctas"], at["cluster"], n, writes=writes)  # noqa: E731
        return self.rate(build, 8, 24, at["ctas"] * 1024 * 64) / 1e9

    def dsmem_write(self, row: Row) -> float:
        """GB/s of SMs that write it."""
        return self.dsmem_read(row, writes=True)

    def null(self, row: Row) -> float:
        """Microseconds of an empty kernel that has run before."""
        program = micro.null(self.spec.sm.count)
        result = self.device().run(program.kernels[0], {})
        return result.time_ps / 1e6

    def _scale_ps(self, elements: int) -> int:
        """Duration of one of many a = c * b, b = c * a; the caches are as the ones before left them."""
        device, program = self.device(), micro.scale(elements)
        addresses = program.addresses()
        times = [device.run(k, addresses).time_ps for k in program.kernels * 2]
        return times[-1]

    def repeat_stream(self, row: Row) -> float:
        """Microseconds a kernel of back-to-back dependent launches on a stream."""
        return scope_ps(self.spec, [self._scale_ps(row.number)], "stream") / 1e6

    def repeat_graph(self, row: Row) -> float:
        """Microseconds a kernel of a graph of dependent launches."""
        return scope_ps(self.spec, [self._scale_ps(row.number)], "graph") / 1e6


def simulate(row: Row) -> float:
    """What the engine gives for a row, in its unit."""
    bench = Bench(load_arch(row.machine), row.clock_mhz * 1_000_000)
    name = "stream" if row.probe.removeprefix("stream_") in micro.STREAMS else row.probe
    return float(getattr(bench, name)(row))


# ------------------------------------------------------------------------------------------------------------- output


@dataclass(frozen=True)
class Outcome:
    """A row with its simulated value; deviation and limit in per cent."""

    row: Row
    simulated: float

    @property
    def deviation(self) -> float:
        """Simulated against measured."""
        return 100 * (self.simulated / self.row.value - 1)

    @property
    def limit(self) -> float:
        """Allowed deviation."""
        return LIMITS.get(self.row.unit, RATE_LIMIT)

    @property
    def within(self) -> bool:
        """Whether it is."""
        return abs(self.deviation) <= self.limit

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            **asdict(self.row),
            "simulated": round(self.simulated, 3),
            "deviation_percent": round(self.deviation, 2),
            "within": self.within,
        }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--arch", nargs="+", default=list(MACHINES), metavar="NAME")
    parser.add_argument("--probe", nargs="+", metavar="NAME", help="names, or their beginnings")
    parser.add_argument("--all", action="store_true", help="every size of the memory probes (slow)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        for name in options.arch:
            load_arch(name)
    except InputError as error:
        print(f"microbench: {error}", file=sys.stderr)
        return 2
    prefixes = tuple(options.probe) if options.probe else ("",)
    chosen = [row for row in rows(options.all) if row.machine in options.arch and row.probe.startswith(prefixes)]
    if not chosen:
        print(f"microbench: no measurement of {', '.join(options.arch)} for {options.probe}", file=sys.stderr)
        return 2
    chosen.sort(key=lambda row: options.arch.index(row.machine))
    outcomes, begin = [], time.perf_counter()
    if not options.json:
        print(f"{'machine':15} {'probe':22} {'at':16} {'simulated':>10} {'measured':>10} {'':7} {'off':>7}  source")
    for row in chosen:
        outcome = Outcome(row, simulate(row))
        outcomes.append(outcome)
        if not options.json:
            flag = "~" if row.contradicted_by else " " if outcome.within else "*"
            print(
                f"{row.machine:15} {row.probe:22} {row.at:16.48} {outcome.simulated:10.1f} {row.value:10.1f} "
                f"{row.unit:7}{outcome.deviation:+7.1f}%{flag} {row.source}",
                flush=True,
            )
    counted = [outcome for outcome in outcomes if not outcome.row.contradicted_by]
    good = sum(outcome.within for outcome in counted)
    if options.json:
        print(json.dumps([outcome.as_dict() for outcome in outcomes], indent=1))
    else:
        seconds = time.perf_counter() - begin
        print(f"{good} of {len(counted)} rows within 5 % (cycles, us) or 8 % (rates); {seconds:.0f} s. * beyond")
        if apart := [outcome.row for outcome in outcomes if outcome.row.contradicted_by]:
            print(f"{len(apart)} more (~) contradict other sources:")
        for row in apart:
            print(f"  {row.machine} {row.probe} {row.at}: {row.contradicted_by}")
    return 0 if good == len(counted) else 1


if __name__ == "__main__":
    sys.exit(main())
