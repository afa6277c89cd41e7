"""Kinds: what reads the texts and files that people write, one by one."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

from arch.leaves import leaves
from arch.load import load_arch
from fuzzing import samples
from fuzzing.frame import changed_bytes, changed_file, changed_json, file, kind
from fuzzing.programs import TRACE

_OVERRIDES = (
    *("l2.size=60 MiB", "sm.count=66", "dram.bandwidth=1.5 TB/s", "instructions.ffma.fp32.interval=3 cycles"),
    *(f"{path}=1" for path in leaves(type(load_arch("h100-sxm")))),
)


@kind("machine file", samples.PRESET, change=changed_file)
def _machine_file(text: str, folder: Path) -> object:
    return load_arch(str(file(text, folder, "machine.yaml")))


@kind("override", *_OVERRIDES)
def _override(text: str, folder: Path) -> object:
    return load_arch("h100-sxm", [text])


@kind("workload", "gemm m=64 n=64 k=64 dtype=fp16", "softmax rows=4 cols=8", "sum n=100")
def _workload(text: str, folder: Path) -> object:
    from workloads.parse import parse

    return parse(text)


@kind("topology", samples.TOPOLOGY, "Layer, M, N, K,\nq, 40, 24, 16,\n", change=changed_file)
def _topology(text: str, folder: Path) -> object:
    from workloads.graphs.network_file import NetworkFile

    return NetworkFile(str(file(text, folder, "net.csv"))).with_defaults("int8").macs


@kind("SCALE-Sim configuration", samples.SCALESIM, change=changed_file)
def _scalesim(text: str, folder: Path) -> object:
    from arch.scalesim import read_config

    machine = load_arch("tpu-v1")
    config = read_config(str(file(text, folder, "scale.cfg")), machine)
    return load_arch("tpu-v1", config.overrides)


@kind("schedule", "wgmma 128x128x64 cluster 2x1 stages 4 pingpong", "auto", "mma 64x64x32")
def _schedule(text: str, folder: Path) -> object:
    from sim.app.run import program_listing

    return program_listing("gemm m=64 n=64 k=64 dtype=fp16", "h100-sxm", schedule=text)


@kind("attention schedule", "flash3 128x128 stages 2", "flash2", "unfused")
def _attention_schedule(text: str, folder: Path) -> object:
    from sim.app.run import program_listing

    text_of = "attention batch=1 heads=1 seq=128 head_dim=64 dtype=fp16"
    return program_listing(text_of, "h100-sxm", schedule=text)


@kind("vary", "m=256:4096:*2", "sm.count=66,132", "l2.size=25 MiB:50 MiB:lin3", "m,n=1:9:4")
def _vary(text: str, folder: Path) -> object:
    from sim.app.study.axes import Base, axes_of

    return axes_of(Base("gemm m=64 n=64 k=64 dtype=fp16", ("t4",)), [[text]])


@kind("constraint", "sm.count * 4.2 + l2.size_bytes / 2**20 * 0.9 <= 900", "max(1, 2) >= 1")
def _expression(text: str, folder: Path) -> object:
    from sim.app.study.expressions import Constraint, check_names

    known = {"sm.count": 4.0, "l2.size_bytes": 2.0**20}
    constraint = Constraint.parse(text, "--subject-to")
    check_names(constraint, known, "--subject-to")
    return constraint.excess(known)


@kind("configuration", samples.CONFIG, change=changed_file)
def _config(text: str, folder: Path) -> object:
    from sim.app.study.check import read_config

    return read_config(file(text, folder, "tilewave.toml"))


@kind("lock", samples.LOCK, change=changed_file)
def _lock(text: str, folder: Path) -> object:
    from sim.app.study.digest import changes, shown
    from sim.app.study.lockfile import read

    lock = read(file(text, folder, "cycles.lock"))
    return [shown(changes(entry.digest, entry.digest)) for entry in lock.entries.values()]


@kind("report", samples.REPORT, change=changed_file)
@kind("fields of a report", samples.REPORT, change=changed_json)
def _diff(text: str, folder: Path) -> object:
    from sim.app.study.difference import difference

    path = file(text, folder, "report.json")
    return str(difference(path, path))


@kind("notebook", samples.NOTEBOOK, change=changed_file)
@kind("fields of a notebook", samples.NOTEBOOK, change=changed_json)
def _notebook(text: str, folder: Path) -> object:
    from sim.app.labs.grade import read

    return read(file(text, folder, "x.ipynb"))


@kind("profiler's trace", samples.TRACE, change=changed_file)
@kind("fields of a profiler's trace", samples.TRACE, change=changed_json)
def _trace(text: str, folder: Path) -> object:
    from workloads.graphs.kineto import read_trace

    return read_trace(Path(file(text, folder, "trace.json")))


@kind("packed trace of a profiler", gzip.compress(samples.TRACE.encode()), change=changed_bytes)
def _packed_trace(content: bytes, folder: Path) -> object:
    from workloads.graphs.kineto import read_trace

    return read_trace(Path(file(content, folder, "trace.json.gz")))


@kind("packed trace of a kernel", lzma.compress(TRACE.encode()), change=changed_bytes)
def _packed_kernel(content: bytes, folder: Path) -> object:
    from sim.gpu.sass.trace_files import read_trace

    return read_trace(str(file(content, folder, "k.traceg.xz")))


@kind("configuration of a model", *samples.MODELS, change=changed_file)
@kind("fields of a model's configuration", *samples.MODELS, change=changed_json)
def _model_config(text: str, folder: Path) -> object:
    from workloads.parse import parse

    path = file(text, folder, "config.json")
    written = f"llama model={path} phase={{}} batch=2 seq=16"
    return [
        parse(written.format(phase)).with_defaults("bf16").graph(fused=True).macs for phase in ("prefill", "decode")
    ]


@kind("TPU program", samples.PROGRAM)
def _tpu_program(text: str, folder: Path) -> object:
    from sim.tpu.assembly import assemble

    return assemble(text)


@kind("window", "0:20000", "3", ":7")
def _window(text: str, folder: Path) -> object:
    from sim.app.trace.window import parse_range

    return parse_range("--window", text)
