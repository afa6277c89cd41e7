"""The units: accounts that sum up, numbers that come out right, programs that cannot work, assembly that reads back."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.errors import InputError
from arch.load import load_arch
from arch.tpu import TpuSpec
from sim.app.run import compare, program_listing, simulate
from sim.tpu.assembly import assemble, disassemble
from sim.tpu.data import Memory
from sim.tpu.machine import ACTIVE, NON_MATRIX, UNIT_CAUSES, WEIGHT_SHIFT, WEIGHT_STALL, Machine
from sim.tpu.program import Instruction, MatrixMultiply, Program, Sync
from sim.tpu.verify import verify
from workloads.ops import Gemm
from workloads.ops.networks import APPS, Convolution, Dense, Elementwise, Network, Pool
from workloads.parse import parse
from workloads.registry import build
from workloads.tpu.choose import candidates

TINY = (
    "array.rows=8", "array.columns=4", "accumulators.rows=64", "weight_fifo.depth=2", "unified_buffer.size=8 KiB",
    "control.sync=20 cycles", "host.turnaround=1 us",
)  # fmt: skip
"""A small machine, so that small shapes have many tiles, blocks and waits."""


def tiny(*more: str) -> TpuSpec:
    spec: TpuSpec = load_arch("tpu-v1", [*TINY, *more])
    return spec


def program_for(workload: str, spec: TpuSpec) -> Program:
    op = parse(workload).with_defaults("int8")
    program: Program = build(op, spec, candidates(op, spec, "auto")[0][0])
    return program


WORKLOADS = (
    "gemm m=70 n=30 k=20 batch=2",
    "gemm m=33 n=5 k=70 tb=T out=int8",
    "gemm m=9 n=9 k=9 ta=T dtype=int16",
    "matvec rows=20 cols=30",
    "conv2d n=2 c=6 h=9 w=7 k=10 r=3 s=3 pad=1",
    "conv2d n=3 c=8 h=8 w=8 k=8 r=3 s=2 stride=2 pad=1 groups=2",
    "conv2d n=1 c=4 h=12 w=12 k=4 r=3 s=3 dilation=2 groups=4 layout=nchw",
    "conv2d n=5 c=3 h=6 w=6 k=5 r=1 s=1 dtype=int16 out=int16",
    "softmax rows=20 cols=33",
    "attention batch=1 heads=2 seq_q=10 seq_k=21 head_dim=9",
    "attention batch=2 heads=4 kv_heads=2 seq=12 head_dim=8 causal=1 window=5 out=int8",
    "attention batch=1 heads=2 kv_heads=1 seq=70 head_dim=9 causal=1",
)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_numbers_are_those_of_numpy(workload: str) -> None:
    for more in ((), ("array.count=2",), ("array.overlap_weights=false",)):
        report = simulate(workload, tiny(*more), check=True)
        assert report.record.check is not None
        assert report.record.check.passed, (workload, more)


@pytest.mark.parametrize("dataflow", ["os", "is"])
@pytest.mark.parametrize("workload", WORKLOADS[:8])
def test_numbers_in_other_dataflows(workload: str, dataflow: str) -> None:
    report = simulate(workload, tiny(f"array.dataflow={dataflow}"), check=True)
    assert report.record.check is not None
    assert report.record.check.passed


IMAGES = Network(
    "images", 2, 8, {"x": (36, 3), "y": (36, 5), "p": (9, 5), "q": (1, 45), "z": (1, 11)}, ("x",), "z",
    (
        Convolution("x", "y", 6, 3, 5, 3), Pool("y", "p", 6, 5, 2, 2), Pool("p", "q", 3, 5, 3, 1),
        Dense("q", "z", 45, 11),
    ),
)  # fmt: skip
CELL = Network(
    "cell", 3, 16,
    {"z0": (1, 9), "z1": (1, 6), "g": (1, 24), "c0": (1, 6), "c1": (1, 6), **dict.fromkeys("kns", (1, 6))},
    ("z0", "c0"), "z1",
    (
        Dense("z0", "g", 9, 24, ("sigmoid", "sigmoid", "sigmoid", "tanh")),
        Elementwise(6, (
            ("multiply", "g+6", "c0", "k"), ("multiply", "g", "g+18", "n"), ("add", "k", "n", "c1"),
            ("tanh", "c1", "", "s"), ("multiply", "g+12", "s", "z1"), ("add", "z1", "z0", "z1"),
        )),
    ),
)  # fmt: skip


@pytest.mark.parametrize("network", [IMAGES, CELL], ids=lambda network: network.name)
@pytest.mark.parametrize("more", [(), ("array.count=2",), ("array.dataflow=os",)], ids=str)
def test_a_network_is_that_of_numpy(network: Network, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(APPS, "mlp1", lambda: network)
    for batch in (network.batch, 5):
        report = simulate(f"inference app=mlp1 batch={batch}", tiny(*more), check=True)
        assert report.record.check is not None
        assert report.record.check.passed
        assert report.record.macs == network.macs(batch) == report.figures.counters["macs"]


@given(
    m=st.integers(1, 200), n=st.integers(1, 40), k=st.integers(1, 60), batch=st.integers(1, 2),
    overlap=st.booleans(), arrays=st.integers(1, 2), fifo=st.integers(1, 4),
)  # fmt: skip
@settings(max_examples=25)
def test_every_tick_of_every_unit_has_one_cause(
    m: int, n: int, k: int, batch: int, overlap: bool, arrays: int, fifo: int
) -> None:
    spec = tiny(f"array.overlap_weights={str(overlap).lower()}", f"array.count={arrays}", f"weight_fifo.depth={fifo}")
    program = program_for(f"gemm m={m} n={n} k={k} batch={batch}", spec)
    verify(program, spec)
    result = Machine(spec, program).run()
    for unit, account in result.accounts.items():
        assert sum(account.values()) == result.ticks
        matrix = unit.startswith("matrix")
        allowed = {ACTIVE, WEIGHT_STALL, WEIGHT_SHIFT, *NON_MATRIX} if matrix else set(UNIT_CAUSES)
        assert set(account) <= allowed, unit
    counters = result.counters
    assert counters["macs"] == batch * m * n * k
    assert counters["useful_ticks"] <= counters["cell_ticks"]
    assert counters["pcie_write_bytes"] == 4 * batch * m * n
    # Weights come in whole tiles, once for each block of rows.
    blocks = -(-m // 32)
    assert counters["dram_read_bytes"] % (batch * -(-k // 8) * -(-n // 4) * 32) == 0
    assert counters["dram_read_bytes"] >= batch * blocks * -(-k // 8) * -(-n // 4) * 32 // 2


def test_published_counters_sum_to_the_whole() -> None:
    found = simulate("gemm m=300 n=700 k=500", "tpu-v1").to_dict()["tpu"]["counters"]
    parts = (found[name] for name in ("array_active", "weight_stall", "weight_shift", "non_matrix"))
    assert sum(parts) == pytest.approx(1)
    assert found["useful_macs"] + found["unused_macs"] == pytest.approx(found["array_active"])


def test_the_same_run_gives_the_same_report() -> None:
    first, second = (simulate("gemm m=300 n=70 k=90", "tpu-v1").to_dict() for _ in range(2))
    for report in (first, second):
        del report["simulator"]
    assert first == second


@pytest.mark.parametrize(
    ("figure", "slower"),
    [
        ("dram.bandwidth=3.4 GB/s", True), ("pcie.bandwidth=1 GB/s", True), ("array.wide_interval=4 cycles", False),
        ("activation.values=16", True), ("unified_buffer.bandwidth=64 B/clk", True), ("control.sync=9000 cycles", True),
        ("weight_fifo.depth=1", True), ("dram.latency=30 us", True),
    ],
)  # fmt: skip
def test_figures_of_the_machine_count(figure: str, slower: bool) -> None:
    workload = "inference app=mlp0 batch=20"
    base, changed = (simulate(workload, "tpu-v1", set=s).cycles for s in ([], [figure]))
    assert changed > base if slower else changed == base


def test_modes_run_at_their_rates() -> None:
    """8 x 16 bit at half the rate of 8 x 8, 16 x 16 at a quarter."""
    cycles = [
        simulate(f"gemm m=2048 n=512 k=512 dtype={dtype}", "tpu-v1", schedule=schedule).to_dict()["tpu"]["array_cycles"]
        for dtype, schedule in (("int8", "auto"), ("int8", "tiled 8x16"), ("int16", "auto"))
    ]
    fill = 256 + 510
    assert [c - fill for c in cycles] == [4 * 2048, 8 * 2048, 16 * 2048]


# ---------------------------------------------------------------------------------------------- assembly


@pytest.mark.parametrize("workload", WORKLOADS)
def test_assembly_reads_back(workload: str) -> None:
    program = program_for(workload, tiny())
    assert assemble(disassemble(program.instructions)) == list(program.instructions)


def test_a_changed_program_runs() -> None:
    """A lab's way: print a program, change it, run it."""
    spec = tiny()
    program = program_for("gemm m=20 n=8 k=16 out=int8", spec)
    text = disassemble(program.instructions).replace("activate ", "activate function=relu ")
    changed = dataclasses.replace(program, instructions=assemble(text))
    op = Gemm(m=20, n=8, k=16, out="int8").with_defaults("int8")
    results = []
    for each in (program, changed):
        verify(each, spec)
        memory = Memory(spec, each)
        each.fill(memory, op.inputs())
        Machine(spec, each, memory).run()
        results.append(each.results(memory)[0])
    assert (results[1] == results[0].clip(min=0)).all()
    assert (results[0] < 0).any()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("matrix_multply ub=0", "line 1: unknown instruction 'matrix_multply'; nearest: matrix_multiply"),
        ("\nsync waitr=matrix0 after=activation", "line 2: sync has no field 'waitr'; nearest: waiter"),
        ("sync waiter=matrix0", "line 1: sync: after missing"),
        ("read_weights address=x", "line 1: read_weights address=x: must be a whole number"),
        ("read_weights address=0 address=0", "given twice"),
        ("read_weights address", "has no value"),
    ],
)
def test_wrong_assembly(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        assemble(text)
    assert says in str(caught.value)


# ---------------------------------------------------------------------------------------------- wrong programs

LOAD = "read_host_memory host=0 address=0 rows=4 row_bytes=8 host_pitch=8 pitch=8\n"
WEIGHTS = "read_weights address=0\n"
WAIT = "sync waiter=matrix0 after=host_read\n"
MULTIPLY = "matrix_multiply ub=0 pitch=8 rows=4 depth=8 columns=4 acc=0\n"
BEHIND = LOAD.replace("address=0", "address=4096")
DRAIN = "sync waiter=host_write after=host_read\n"
STORE = "write_host_memory ub=0 host=0 rows=4 row_bytes=8 pitch=8 host_pitch=8\n"
ACTIVATE = "activate acc=0 rows=4 columns=4 ub=64 pitch=4\n"


def refusal(text: str, *figures: str) -> str:
    """What is said about a program; empty if it runs."""
    spec = tiny(*figures)
    instructions: list[Instruction] = assemble(text)
    program = Program("lab", "lab", instructions, 4096, 64, lambda *_: None, lambda _: [])
    try:
        verify(program, spec)
        Machine(spec, program).run()
    except InputError as error:
        return str(error)
    return ""


def test_the_programs_that_the_wrong_ones_are_made_of_run() -> None:
    assert refusal(LOAD + WEIGHTS + WAIT + MULTIPLY + ACTIVATE) == ""
    assert refusal(LOAD + DRAIN + STORE + "sync waiter=host_read after=host_write\n" + BEHIND) == ""
    assert refusal(LOAD + DRAIN + STORE + BEHIND.replace("host=0", "host=32")) == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (WEIGHTS + MULTIPLY, "instruction 1 (matrix_multiply): reads byte 0 of the unified buffer"),
        (LOAD + WEIGHTS + MULTIPLY, "may read what host_read has not written yet; missing: sync waiter=matrix0"),
        (LOAD + WAIT + MULTIPLY, "takes a weight tile that no read_weights before it fetches"),
        (LOAD + ACTIVATE, "reads accumulator 0, never written"),
        (LOAD + WEIGHTS + WAIT + MULTIPLY.replace("acc=0", "acc=0 accumulate=1"), "adds to accumulator 0, never"),
        (LOAD + WEIGHTS + WAIT + MULTIPLY.replace("acc=0", "acc=61"), "ends at accumulator 65"),
        (LOAD + WEIGHTS + WAIT + MULTIPLY.replace("columns=4", "columns=5"), "columns=5: must be 1 to array.columns"),
        (LOAD + WEIGHTS + WAIT + MULTIPLY.replace("depth=8", "depth=8 repeat=2"), "depth=8 takes repeat=1"),
        (LOAD.replace("address=0", "address=8184"), "of the unified buffer, unified_buffer.size is 8192"),
        (LOAD.replace("host=0", "host=4090"), "of host memory, the program has 4096"),
        (WEIGHTS.replace("address=0", "address=64"), "of weight memory, which holds 64"),
        (LOAD + LOAD.replace("pitch=8\n", "pitch=4\n"), "pitch=4: a row has 8 bytes"),
        (LOAD + WEIGHTS + WAIT + MULTIPLY + LOAD, "may overwrite what matrix0 still uses; missing: sync waiter=host_r"),
        (LOAD + DRAIN + STORE + BEHIND, "may come before host_write has ended; missing: sync waiter=host_read"),
        (
            BEHIND + DRAIN + LOAD + STORE.replace("ub=0", "ub=4096"),
            "may come before host_read has ended; missing: sync",
        ),
        ("sync waiter=matrix1 after=host_read", "there is no unit matrix1"),
        (WEIGHTS.replace("\n", " array=1\n"), "array.count = 1"),
        ("interrupt_host work=x", "work=x: the program has none"),
        (LOAD + "vector op=row_max a=0 b=0 ub=64 rows=1 columns=4 pitch=4", "has no vector unit, which row_max needs"),
        (LOAD + "vector op=exp a=0 b=0 ub=64 rows=1 columns=4 pitch=4", "op=exp: one of"),
    ],
)
def test_wrong_programs_are_refused_with_the_instruction(text: str, says: str) -> None:
    message = refusal(text)
    assert says in message
    assert message.startswith("instruction ")
    assert "\n" not in message


def test_a_deadlock_is_named() -> None:
    """More multiplies wait in the queue than it holds, so the weights behind them never come."""
    text = LOAD + WAIT + MULTIPLY * 4 + WEIGHTS * 4
    spec = tiny("control.queue=1")
    program = Program("lab", "lab", assemble(text), 4096, 64, lambda *_: None, lambda _: [])
    with pytest.raises(InputError, match=r"instruction 2 .*never ends"):
        Machine(spec, program).run()


@pytest.mark.parametrize("workload", [WORKLOADS[0], WORKLOADS[5], WORKLOADS[8], WORKLOADS[9]])
def test_every_synchronisation_is_needed(workload: str) -> None:
    """Each `Sync` removed in turn: the verifier catches it, or another one enforces the same order."""
    spec = tiny()
    program = program_for(workload, spec)
    syncs = [n for n, i in enumerate(program.instructions) if isinstance(i, Sync)]
    caught = 0
    for number in syncs[:60]:
        mutant = dataclasses.replace(
            program, instructions=[i for n, i in enumerate(program.instructions) if n != number]
        )
        try:
            verify(mutant, spec)
        except InputError:
            caught += 1
            continue
        # Not caught: then the order holds without it, and numbers cannot change.
        op: Any = parse(workload).with_defaults("int8")
        memory = Memory(spec, mutant)
        operands = op.inputs()
        mutant.fill(memory, operands)
        Machine(spec, mutant, memory).run()
        expected = mutant.reference(operands) if mutant.reference else op.references(*operands)
        for found, right in zip(mutant.results(memory), expected, strict=True):
            assert (found == right.reshape(found.shape)).all()
    assert caught >= min(2, len(syncs))


# ---------------------------------------------------------------------------------------------- across families


def test_unsupported_operators_and_formats_say_so() -> None:
    for workload, says in (
        ("gemm m=8 n=8 k=8 dtype=fp16", "multiplies int8 and int16, not fp16"),
        ("gemm m=8 n=8 k=8 beta=1", "no way to load its accumulators"),
        ("layernorm rows=2 cols=8", "operator layernorm has no schedule on tpu-v1; available: attention, conv2d, gemm"),
        ("softmax rows=20000 cols=20000", "unified_buffer.size"),
        ("gemm m=1 n=200000 k=200000", "dram.size"),
        ("inference app=mlp0 dtype=fp16", "int8 weights"),
    ):
        with pytest.raises(InputError, match=says):
            simulate(workload, "tpu-v1")
    with pytest.raises(InputError, match="l2=warm: means nothing on tpu-v1"):
        simulate("gemm m=8 n=8 k=8", "tpu-v1", l2="warm")
    with pytest.raises(InputError, match="did you mean halves"):
        simulate("gemm m=8 n=8 k=8", "tpu-v1", schedule="tiled halfs")


def test_one_table_and_one_roofline_with_a_gpu() -> None:
    comparison = compare("gemm m=128 n=128 k=128", ["tpu-v1", "t4", "tpu-v1-ext"], l2="warm")
    first, second, _ = comparison.to_dict()["rows"]
    assert (first["family"], first["dtype"]) == ("tpu", "int8")
    assert (second["family"], second["dtype"]) == ("gpu", "fp16")
    assert "The option l2 means nothing on tpu-v1." in first["notes"]
    assert "pJ/op" in str(comparison)
    axes = comparison.plot_roofline()
    assert axes.get_xlabel() == "operations a byte of external memory"
    refused = compare("gemm m=128 n=128 k=128", ["tpu-v1", "t4"], set=["array.rows=128"]).to_dict()["rows"][1]
    assert "array.rows" in refused["reason"]


def test_a_vector_unit_keeps_softmax_on_the_chip() -> None:
    host, chip = (simulate("softmax rows=512 cols=512", name) for name in ("tpu-v1", "tpu-v1-ext"))
    assert host.figures.counters["pcie_write_bytes"] == 512 * 512
    assert "pcie_write_bytes" not in chip.figures.counters
    assert host.cycles > 5 * chip.cycles
    assert any("what-if" in note for note in chip.record.notes)
    assert not any("what-if" in note for note in host.record.notes)


def test_a_slow_link_and_a_slow_activation_unit_are_told_apart() -> None:
    """Small sums of one deep tile: the array waits for accumulators, for one reason or the other."""
    workload = "gemm m=1024 n=4096 k=256 out=int8"
    link = simulate(workload, "tpu-v1", set=["pcie.bandwidth=1 GB/s"]).to_dict()["stalls"]["matrix"]
    unit = simulate(workload, "tpu-v1", set=["pcie.bandwidth=200 GB/s", "activation.values=32"])
    slow = unit.to_dict()["stalls"]["matrix"]
    assert link["output"] > 0.5 > 10 * link.get("accumulators", 0)
    assert slow["accumulators"] > 0.5 > 3 * slow.get("output", 0)


def test_attention_is_what_crosses_the_link() -> None:
    """S = 512, d = 64: 2,048 cycles of multiplies; transfers and the host are nearly all of the time."""
    report = simulate("attention batch=1 heads=1 seq=512 head_dim=64", "tpu-v1")
    matrix = report.record.kernels[0].stalls["matrix"]
    assert matrix["active"] == 2048
    waiting = sum(matrix[cause] for cause in ("input", "output", "host"))
    assert waiting > 0.9 * report.cycles


def test_listing_is_assembly() -> None:
    text = program_listing("gemm m=64 n=64 k=64", "tpu-v1")
    assert [i.NAME for i in assemble(text)][:2] == ["read_weights", "read_host_memory"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("ub", -1, "ub=-1: must be a whole number from 0"),
        ("rows", 1.5, "rows=1.5"),
        ("rows", 1 << 39, "ends at byte .* of the unified buffer"),
        ("acc", True, "acc=True"),
        ("depth", 10**30, "depth=an integer of 100 bits"),
    ],
)
def test_fields_of_instructions_are_whole_numbers(field: str, value: Any, message: str) -> None:
    spec = tiny()
    program = program_for("gemm m=20 n=8 k=16 out=int8", spec)
    first = next(n for n, i in enumerate(program.instructions) if isinstance(i, MatrixMultiply))
    changed = [*program.instructions]
    changed[first] = dataclasses.replace(changed[first], **{field: value})
    with pytest.raises(InputError, match=message):
        verify(dataclasses.replace(program, instructions=changed), spec)
