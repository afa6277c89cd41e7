"""Small kernels as nvcc compiles them: their values against NumPy, and that they run on their machines."""

from pathlib import Path

import numpy as np
import pytest

from arch.errors import InputError
from sim.app.run import simulate
from sim.gpu.sass.cubin import read_compiled
from sim.gpu.sass.opcodes import opcode_of
from sim.gpu.sass.text import Control, Instruction
from tests.gpu.lab import LAB, judged

FOLDER = Path(__file__).parent / "sass" / "lab"
FIXTURES = sorted(path.stem for path in FOLDER.glob("*.sass"))
MACHINES = {"sm75": "t4", "sm80": "a100-sxm4-80gb", "sm90": "h100-sxm"}


@pytest.mark.parametrize("name", FIXTURES)
def test_a_kernel_gives_the_values_of_numpy(name: str) -> None:
    kernel, _, _ = name.partition(".")
    (lab,) = (one for one in LAB if one.name == kernel)
    assert judged(lab, read_compiled(str(FOLDER / f"{name}.sass"))) == ""


def text(name: str, arguments: str, block: int = 128) -> str:
    return f"{FOLDER / name}.sass:{name.partition('.')[0]} grid=1 block={block} {arguments}"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("d_divide.sm75", "y=fp64[128] x=fp64[129]"),  # the rare way of a division is not taken
        ("p_s8_rc.sm75", "a=int8[4096] b=int8[4096] c=int32[4096]"),
        ("p_half_rc.sm75", "a=fp16[4096] b=fp16[4096] c=fp16[4096]"),
        ("m_globals.sm80", "y=int32[128]"),
    ],
)
def test_a_kernel_whose_way_no_data_decides_runs_without_them(name: str, arguments: str) -> None:
    block = 32 if name.startswith("p_") else 128
    report = simulate(text(name, arguments, block), MACHINES[name.partition(".")[2]])
    assert report.cycles > 1000
    assert not any("executed with values" in note for note in report.record.notes)


def test_a_table_of_branches_goes_where_its_data_say(tmp_path: Path) -> None:
    """Eight cases of a switch in one warp take longer than one of them."""
    for name, x in (("one", np.full(129, 2)), ("all", np.arange(129) % 8)):
        np.save(tmp_path / f"{name}.npy", x.astype(np.int32))
    cycles = [
        simulate(text("c_switch.sm75", f"y=fp32[128] x=int32[129]:{tmp_path / name}.npy"), "t4").cycles
        for name in ("one", "all")
    ]
    assert cycles[0] * 1.05 < cycles[1]


def test_what_depends_on_local_memory_is_executed_with_values_first(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(129, dtype=np.int32))
    words = "c_local_stack.sm80", f"y=int32[128] x=int32[129]:{tmp_path / 'x.npy'}"
    report = simulate(text(*words), "a100-sxm4-80gb")
    assert any("executed with values" in note for note in report.record.notes)
    with pytest.raises(InputError, match=r"give its array as NAME=dtype\[shape\]:FILE.npy"):
        simulate(text("c_local_stack.sm80", "y=int32[128] x=int32[129]"), "a100-sxm4-80gb")


def test_which_way_a_division_of_integers_takes_is_not_guessed() -> None:
    with pytest.raises(InputError, match=r"array x is read, whose content nobody has given \(give its array as NAME="):
        simulate(text("i_divide64.sm80", "y=int64[128] x=int64[129]"), "a100-sxm4-80gb")


def unknown(opcode: str) -> str:
    with pytest.raises(InputError) as error:
        opcode_of(Instruction(0, "", opcode, (), Control(1, False, -1, -1, 0)))
    return str(error.value)


def test_the_nearest_opcode_is_one_of_the_same_kind() -> None:
    assert "known of MUFU are MUFU.COS, " in unknown("MUFU.XYZ")
    assert "the nearest that is: DSETP" in unknown("DSETP2")
    assert unknown("TEX.SCR.B.LL").endswith("opcode TEX.SCR.B.LL is not known; nothing was run")
