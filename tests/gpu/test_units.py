"""Units of the engine: columns and parameters have one owner, functions stay short, figures are declared."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from arch.errors import InputError
from arch.gpu import GpuSpec, WarpScheduler
from arch.load import load_arch
from arch.reads import recorded
from sim.gpu.engine import api, boxes, fetch, global_memory, parameters, scheduler, semaphores, tma
from sim.gpu.engine.api import Device
from sim.gpu.engine.state import CHIP_WIDTH, SM_WIDTH
from sim.gpu.lower.listing import listing
from sim.gpu.lower.occupancy import occupancy, shared_of_cta
from sim.gpu.lower.tables import N_SCOREBOARDS, N_TILES, N_VARS, WarpVariables
from sim.gpu.units import (
    barriers,
    cp_async,
    cta,
    l1,
    pipes,
    policies,
    port,
    record,
    shared,
    tcgen05,
    tensor,
    tree,
    warp,
)
from sim.gpu.units.chip import Launching, Part
from tests.gpu.conftest import run
from tests.gpu.kernels import butterfly, dynamic_copy, exchange, mma_gemm, split_sum, tensor_gemm, tma_copy, wgmma_gemm
from workloads.gpu.micro import mma_loop, tensor_products

# Its roles re-allocate registers, so that all warps start with 168.
GEMM = wgmma_gemm()
GEMM = replace(GEMM, kernels=(replace(GEMM.kernels[0], launch_registers=168),))
PRODUCTS = (("m128n64k32", "mxfp8"), ("m256n64k16", "bf16"))
FOLDERS = (Path(api.__file__).parent, Path(tensor.__file__).parent)
MODULES = {f"sim.gpu.{f.name}.{path.stem}" for f in FOLDERS for path in f.glob("*.py") if path.stem != "__init__"}

# Rows that units share: those who own columns of one, its width, and the columns that are the first of several.
ROWS: dict[str, tuple[tuple[type[IntEnum], ...], int, dict[IntEnum, int]]] = {
    "chip": (
        (tree.Turn, record.Recorder, cta.Grid, semaphores.TileCounter, semaphores.FlagWaiters, global_memory.Stores),
        CHIP_WIDTH,
        {},
    ),
    "SM": (
        (
            shared.SharedMemory,
            port.Port,
            global_memory.LoadStore,
            cta.CtaSlots,
            tma.Tma,
            fetch.InstructionFetch,
            l1.L1,
            tcgen05.TensorMemory,
        ),
        SM_WIDTH,
        {tcgen05.TensorMemory.READ_FREE: tcgen05.QUARTERS, tcgen05.TensorMemory.WRITE_FREE: tcgen05.QUARTERS},
    ),
    "sub-core": (
        (pipes.SubCore, scheduler.Overtaken, scheduler.Line, tensor.RegisterFile, tensor.TensorCore),
        tensor.TensorCore.FIRST_WARP + 1,
        {pipes.SubCore.PIPE_FREE: pipes.N_PIPES, pipes.SubCore.PIPE_SHARE: pipes.N_PIPES},
    ),
    "CTA": (
        (cta.Cta, barriers.ClusterBarrier, semaphores.CtaTiles),
        cta.Cta.WIDTH,
        {semaphores.CtaTiles.RING: 2 * semaphores.TILES_AHEAD, cta.Cta.PEERS: 16},
    ),
    "warp": (
        (
            warp.Warp,
            WarpVariables,
            boxes.Walk,
            tensor.TensorWarp,
            tcgen05.TensorMemoryWarp,
            cp_async.CpAsyncGroups,
            tma.BulkGroups,
            semaphores.TileWarp,
            policies.Turns,
        ),
        warp.Warp.WIDTH,
        {
            warp.Warp.READY: N_SCOREBOARDS + 2 * N_TILES,
            WarpVariables.FIRST: N_VARS,
            tensor.TensorWarp.GROUP_OPS: tensor.OPS,
            tensor.TensorWarp.OP_LOG_ROW: tensor.OPS,
            cp_async.CpAsyncGroups.DONE: cp_async.GROUPS,
            tma.BulkGroups.READ: tma.GROUPS,
            tma.BulkGroups.VISIBLE: tma.GROUPS,
        },
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_column_of_a_row_has_one_owner(row: str) -> None:
    owners, width, several = ROWS[row]
    taken: Counter[int] = Counter()
    for columns in owners:
        for column in columns:
            if column.name == "WIDTH" or column is tensor.TensorWarp.OP_TICK:  # between those of OP_END
                continue
            count = 2 * tensor.OPS if column is tensor.TensorWarp.OP_END else several.get(column, 1)
            taken.update(range(column, column + count))
    assert [column for column, count in taken.items() if count > 1] == []
    assert max(taken) < width


def launching(spec: GpuSpec) -> Launching:
    kernel = tma_copy().kernels[0]
    return Launching(kernel, occupancy(kernel, spec), shared_of_cta(kernel, spec), spec.clock.boost_hz)


def test_a_parameter_has_one_owner_and_lies_in_its_part(hopper: GpuSpec) -> None:
    parts = sorted({int(part) for part in Part})
    found: Counter[int] = Counter()
    for unit in parameters.UNITS:
        indices = [int(index) for index in unit.parameters(hopper, launching(hopper))]
        assert len({max(part for part in parts if part <= index) for index in indices}) == 1, unit.__name__
        found.update(indices)
    assert [index for index, count in found.items() if count > 1] == []


def test_every_file_with_parameters_is_a_unit() -> None:
    files = {name for name in MODULES if name.rpartition(".")[2] not in ("parameters", "api")}
    listed = {unit.__name__ for unit in parameters.UNITS}
    assert {name for name in files if hasattr(import_module(name), "parameters")} == listed


def functions() -> Iterator[tuple[str, int]]:
    """Functions of the engine and their lines."""
    for path in sorted(path for folder in FOLDERS for path in folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno is not None
                yield f"{path.stem}.{node.name}", node.end_lineno - node.lineno + 1


def test_no_function_is_longer_than_80_lines() -> None:
    assert [name for name, lines in functions() if lines > 80] == []


def test_machine_files_name_every_policy_of_the_warp_scheduler() -> None:
    assert [policy.name.lower() for policy in policies.Policy] == list(get_args(WarpScheduler))


def test_a_unit_declares_what_it_reads_and_reads_what_it_declares(hopper: GpuSpec, ampere: GpuSpec) -> None:
    read: dict[str, set[str]] = {}
    blackwell = load_arch("b200", {"sm.count": 2, "gpc.count": 2})
    pair = load_arch("b200", {"sm.count": 2, "gpc.count": 1})
    for machine, overrides, programs in (
        (blackwell, {}, (tensor_gemm(clc=True),)),
        (pair, {}, [tensor_products(*product, 1, pair=True) for product in PRODUCTS]),
        (hopper, {}, (tma_copy(), GEMM, dynamic_copy(), exchange())),
        (ampere, {}, (mma_gemm(), split_sum(), butterfly())),
        (ampere, {"scheduler": "two_level"}, (mma_gemm(),)),
    ):
        spec, notes = recorded(machine.model_copy(update={"sm": machine.sm.model_copy(update=overrides)}))
        for program in programs:
            device = Device(spec)
            for kernel in program.kernels:
                device.run(kernel, program.addresses())
            listing(program, spec)
        for path, module in notes:
            name = "instructions" if path.startswith("instructions.") else path
            read.setdefault(module, set()).add(name)
    lower = {f"sim.gpu.lower.{path.stem}" for path in (FOLDERS[0].parent / "lower").glob("*.py")}
    for module in sorted(MODULES | lower):
        declared = set(getattr(import_module(module), "FIGURES", ()))
        found = read.get(module, set()) - {"name"}
        assert (module, sorted(found - declared), sorted(declared - found)) == (module, [], [])


def test_a_tensor_shape_is_a_row_of_a_machine(tmp_path: Path) -> None:
    """Nothing else says what shapes there are: the next product waits for the latency of the row."""
    (tmp_path / "own.yaml").write_text(
        "name: own\nbase: a100-sxm4-80gb\n"
        "instructions:\n  mma.fp16.m32n8k16: {pipe: tensor, interval: 32, latency: 50, source: assumed}\n",
        encoding="utf-8",
    )
    own = load_arch(tmp_path / "own.yaml")
    assert isinstance(own, GpuSpec)
    few, many = (run(own, mma_loop("fp16", "m32n8k16", steps)).ticks for steps in (8, 72))
    assert many - few == 64 * 50 * 256
    a100 = load_arch("a100-sxm4-80gb")
    assert isinstance(a100, GpuSpec)
    with pytest.raises(InputError, match="m32n8k16"):
        run(a100, mma_loop("fp16", "m32n8k16", 8))
