"""Every figure of every preset has an owner, and declarations of units say what is really read."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from arch.leaves import documents, spec_class
from arch.load import list_archs, load_arch
from arch.preset_file import IDENTITY
from arch.reads import Notes, recorded
from sim import simulate
from sim.app.figures import APP, KERNELS, LOADER, declared, owners
from sim.gpu.engine.api import Device
from sim.gpu.lower.kernel import lower_kernel
from sim.gpu.lower.listing import listing
from sim.rdu.host import Launch, run_launches
from sim.rdu.lower import lower_section
from tests.gpu.kernels import exchange
from tests.test_unread import ADD, EXCHANGE, PRODUCT, SOFTMAX
from workloads.gpu.micro import tensor_products
from workloads.rdu.access import chase
from workloads.rdu.sparse import sparse_matvec

# Runs that together ask every unit of a family for all that it reads: machine, overrides, workload, options.
Run = tuple[str, tuple[str, ...], str, dict[str, str]]
BERT = "bert_layer batch=1 seq=16 hidden=64 heads=1 ffn=64"
RUNS: dict[str, list[Run]] = {
    "gpu": [
        # An override asks which figures took part.
        *(
            ("h100-sxm", ("sm.max_ctas=16",), f"gemm m=128 n=128 k=64 dtype={dtype}", {})
            for dtype in ("bf16", "tf32", "fp8", "int8")
        ),
        ("h100-sxm", ("sm.max_ctas=16",), "gemm m=128 n=128 k=64 dtype=fp16", {"l2": "dirty", "scope": "host"}),
        *(("h100-sxm", (), "gemm m=128 n=128 k=64 dtype=fp16", {"schedule": kind}) for kind in ("wgmma", "mma")),
        ("h100-sxm", (), "softmax rows=8 cols=16384 dtype=bf16", {"schedule": "cluster"}),
        ("h100-sxm", (), "attention batch=1 heads=1 seq=128 head_dim=64 dtype=fp16", {"schedule": "flash3"}),
        ("h100-sxm", ("sm.count=8", "power.limit=141 W", "l2.clock=1.7 GHz"), "gemm m=1024 n=1024 k=4096", {}),
        ("b200", ("sm.max_ctas=16",), "gemm m=256 n=128 k=256 dtype=nvfp4 tb=T", {}),
        ("b200", (), "attention batch=1 heads=1 seq=256 head_dim=128 dtype=bf16", {"schedule": "flash4"}),
        ("h100-sxm", ("sm.scheduler=lrr",), "softmax rows=8 cols=256", {}),
        ("h100-sxm", ("sm.scheduler=two_level",), "softmax rows=8 cols=256", {}),
        ("h100-sxm", (), "allreduce bytes=65536 devices=16", {}),
        *(
            ("h100-sxm", (), text, {"schedule": library})
            for text, library in (
                ("all_gather gpus=8 elements=4M", "nccl"),
                ("all_reduce gpus=8 elements=4M", "nccl"),
                ("alltoall gpus=4 elements=4M", "nccl"),
                ("all_reduce gpus=4 elements=4k", "vllm_eager"),
                ("all_reduce gpus=8 elements=1M", "vllm"),
                ("all_reduce gpus=4 elements=4k", "trtllm"),
            )
        ),
        ("t4", (), "all_reduce gpus=2 elements=4k", {}),
        *(("l40s", (), f"{kind} gpus=8 elements=4M", {}) for kind in ("all_reduce", "alltoall")),
        ("a100-sxm4-80gb", ("sm.count=8",), "gemm m=64 n=64 k=32 dtype=fp64", {}),
        ("h100-sxm", (), "copy_h2d bytes=100000", {}),
        ("h100-sxm", (), BERT, {"scope": "event", "schedule": "eager"}),
        ("h100-sxm", (), BERT, {"scope": "stream", "schedule": "graph"}),
        *(("a100-sxm4-80gb", (), compiled, {}) for compiled in (ADD, SOFTMAX)),
        *(("h100-sxm", (), compiled, {}) for compiled in (PRODUCT, EXCHANGE)),
    ],
    "tpu": [
        ("tpu-v1", (), "gemm m=64 n=256 k=256", {}),
        ("tpu-v1", (), "gemm m=64 n=64 k=64 dtype=int16", {"scope": "host"}),
        ("tpu-v1", (), "softmax rows=16 cols=256", {}),
        ("tpu-v1", ("array.dataflow=os",), "gemm m=64 n=256 k=256", {}),
        ("tpu-v1", (), "inference app=mlp1", {}),
        ("tpu-v1-ext", (), "softmax rows=16 cols=256", {}),
        ("tpu-v4", (), "gemm m=64 n=256 k=256", {}),
        ("tpu-v4", (), "attention batch=1 heads=1 head_dim=64 seq=64 causal=1", {}),
    ],
    "gemmini": [
        ("gemmini", ("core.tile=300 cycles",), "gemm m=64 n=64 k=64", {}),
        ("gemmini", (), "gemm m=64 n=64 k=64", {"schedule": "os"}),
        ("gemmini", (), "conv2d n=1 c=16 h=8 w=8 k=32 r=3 s=3 pad=1", {"l2": "warm"}),
    ],
    "rdu": [
        ("sn40l", (), "gemm m=128 n=128 k=128", {}),
        ("sn40l", (), "softmax rows=64 cols=256", {}),
        ("sn40l", (), "softmax rows=64 cols=256", {"schedule": "auto by vectors"}),
        ("sn40l", (), "allreduce bytes=65536 devices=16", {}),
        ("sn40l", (), "copy_h2d bytes=100000", {}),
        ("sn40l", (), "llama model=tiny phase=decode seq=64 layers=2 tp=2", {}),
        ("sn40l", ("pmu.count=20",), "llama model=tiny seq=128", {"scope": "host"}),
        ("plasticine", (), "llama model=tiny seq=128", {}),
        ("plasticine", (), "attention batch=1 heads=2 head_dim=64 seq=128", {}),
        ("plasticine", (), "gemm m=128 n=128 k=128", {}),
    ],
}  # fmt: skip


def notes_of(family: str) -> Notes:
    """What the runs of a family read, (figure, module), rows of the table of instructions as one figure."""
    found: Notes = set()
    for machine, overrides, workload, options in RUNS[family]:
        spec, notes = recorded(load_arch(machine, overrides))
        simulate(workload, spec, check=workload.startswith("gemm"), **options)  # type: ignore[arg-type]
        found |= notes
    if family == "gpu":
        spec, notes = recorded(load_arch("h100-sxm"))
        Device(spec)
        stores = exchange()  # no workload stores to the shared memory of another SM
        lower_kernel(stores.kernels[0], stores.addresses(), spec)
        listing(stores, spec)
        found |= notes
        spec, notes = recorded(load_arch("b200"))
        half = tensor_products("m128n64k16", "bf16", 1, pair=True)  # no workload multiplies 64 rows an SM
        lower_kernel(half.kernels[0], half.addresses(), spec)
        found |= notes
    for machine in ("sn40l", "plasticine") if family == "rdu" else ():
        spec, notes = recorded(load_arch(machine))
        columns = np.random.default_rng(0).integers(0, 512, (64, 4))
        for program in (sparse_matvec(columns, 512), chase(16, on_chip=True)):
            for call in program.calls:
                lower_section(call.section, spec, program.addresses())
        run_launches(spec, [Launch(0, 10**6, prefetch_bytes=4096, memory_ps=10**6)] * 2, "host")
        found |= notes
    return {("instructions" if path.startswith("instructions.") else path, module) for path, module in found}


def read_by_unit(family: str, units: Iterable[str]) -> dict[str, set[str]]:
    """Figures by the unit that read them; of what no unit is, by the name of the module."""
    read: dict[str, set[str]] = {}
    for path, module in notes_of(family):
        above = (unit for unit in (APP, KERNELS) if module.startswith(f"{unit}."))
        if path not in IDENTITY:
            read.setdefault(module if module in units else next(above, module), set()).add(path)
    return {unit: read.get(unit, set()) for unit in {*units, *read}}


@pytest.mark.parametrize("family", RUNS)
def test_a_unit_declares_what_it_reads_and_reads_what_it_declares(family: str) -> None:
    units = declared(family)
    read = read_by_unit(family, units)
    undeclared = {unit: sorted(paths - units.get(unit, frozenset())) for unit, paths in read.items() if unit != KERNELS}
    assert {unit: paths for unit, paths in undeclared.items() if paths} == {}
    unread = {unit: sorted(paths - read[unit]) for unit, paths in units.items() if unit != LOADER}
    assert {unit: paths for unit, paths in unread.items() if paths} == {}


@pytest.mark.parametrize("machine", list_archs())
def test_every_figure_of_a_preset_has_an_owner(machine: str) -> None:
    spec = load_arch(machine)
    model = spec_class(spec.family)
    asked = [path for path in spec.sources if path not in IDENTITY and documents(model, path) is None]
    assert [path for path in asked if not owners(spec.family, path)] == []


SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "lab" / "figures.py"


def script() -> ModuleType:
    """`scripts/lab/figures.py` as a module."""
    spec = importlib.util.spec_from_file_location("figures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["figures"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("machines", [("t4", "h100-sxm"), ("tpu-v1",), ("plasticine",)], ids=" and ".join)
def test_a_figure_that_is_doubled_and_halved_moves_something_or_is_refused(machines: tuple[str, ...]) -> None:
    """A second machine of a family is asked for what moved nothing on the first, and for what that does not have."""
    figures = script()
    moved: set[str] = set()
    for machine in machines:
        found = [figures.examine(machine, path) for path in figures.figures(machine) if path not in moved]
        assert [figure.path for figure in found if figure.outcome == "nothing"] == []
        moved |= {figure.path for figure in found if figure.outcome == "moved"}
