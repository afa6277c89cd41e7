"""Traces of Accel-Sim: the format, its mistakes, and one kernel from its code and from a trace of what it executed."""

import itertools
import lzma
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arch.errors import InputError
from sim.app.cli import main
from sim.app.run import simulate
from sim.gpu.language import GlobalTensor
from sim.gpu.sass.cubin import read_compiled
from sim.gpu.sass.forms import MEMORY
from sim.gpu.sass.kernel import Pointer, SassKernel, Value, sass_program
from sim.gpu.sass.operands import Kind
from sim.gpu.sass.replay import KernelValues, Memory, WarpValues
from sim.gpu.sass.trace_files import read_trace

FOLDER = Path(__file__).parent / "sass"
A100 = "a100-sxm4-80gb"
HEAD = """-kernel name = {name}
-kernel id = 1
-grid dim = ({ctas},1,1)
-block dim = (128,1,1)
-shmem = 0
-nregs = 18
-binary version = 80
-cuda stream id = 0
-shmem base_addr = 0x00007efeb0000000
-local mem base_addr = 0x00007efeb2000000
-nvbit version = 1.5
-accelsim tracer version = 4
-enable lineinfo = 0
"""
FORMAT = "#traces format = PC mask dest_num [reg_dests] opcode src_num [reg_srcs] mem_width [adrrescompress?] [...]\n"


class Tracer(KernelValues):
    """Writes down what warps execute, as Accel-Sim's tracer does."""

    lines: dict[tuple[int, int], list[str]]

    def _execute(self, warp: WarpValues) -> Iterator[Any]:
        self.lines = getattr(self, "lines", {})
        self.lines[warp.cta.place[0], warp.number] = []
        return super()._execute(warp)

    def _flow(self, warp: WarpValues, form: Any) -> bool:
        self._note(warp, form)
        return super()._flow(warp, form)

    def _effect(self, warp: WarpValues, form: Any) -> None:
        self._note(warp, form)
        super()._effect(warp, form)

    def _note(self, warp: WarpValues, form: Any) -> None:
        mask = int(np.packbits(warp.mask, bitorder="little").view(np.uint32)[0])

        def names(operands: Any) -> list[str]:
            return [f"R{o.index if o.index >= 0 else 255}" for o in operands
                    if o.kind in (Kind.REGISTER, Kind.ADDRESS)]  # fmt: skip

        written = names([form.destination] if form.destination else [])
        read = names([*form.addresses, *form.sources])
        words = [f"{form.instruction.address:04x}", f"{mask:08x}", str(len(written)), *written]
        words += [form.instruction.opcode, str(len(read)), *read]
        if form.opcode.unit in MEMORY and mask:
            addresses = [int(a) for a in warp.address(form.addresses[-1], wide=True)[warp.mask]]
            deltas = [b - a for a, b in itertools.pairwise(addresses)]
            words += [str(form.access_bytes), "2", hex(addresses[0]), *map(str, deltas)]
        else:
            words.append("0")
        self.lines[warp.cta.place[0], warp.number].append(" ".join(words))


@pytest.fixture(scope="module")
def streams() -> dict[tuple[int, int], list[str]]:
    """What the warps of an addition of 4 x 512 numbers execute."""
    compiled = read_compiled(str(FOLDER / "add.sm80.sass"))
    arrays = {name: np.zeros(2048, dtype=np.float32) for name in ("x", "y", "out")}
    tensors = tuple(GlobalTensor(name, a.shape, "fp32", (1,)) for name, a in arrays.items())
    values: tuple[Value, ...] = (*(Pointer(name) for name in arrays), 2000)
    program = sass_program(compiled, (4, 1, 1), (128, 1, 1), values, tensors, 0, "test")
    (kernel,) = program.kernels
    assert isinstance(kernel, SassKernel)
    at = program.addresses()
    first = min(at.values())
    memory = Memory(np.zeros(8 << 20, dtype=np.uint8), first, {n: (at[n], a.nbytes) for n, a in arrays.items()})
    tracer = Tracer(kernel, kernel.bank(at), memory, (0, 0))
    tracer.run()
    return tracer.lines


def written(streams: dict[tuple[int, int], list[str]]) -> str:
    """The trace as text."""
    parts = [HEAD.format(name="add", ctas=4), FORMAT]
    for cta in range(4):
        parts.append(f"\n#BEGIN_TB\n\nthread block = {cta},0,0\n")
        for warp in range(4):
            lines = streams[cta, warp]
            parts.append(f"\nwarp = {warp}\ninsts = {len(lines)}\n" + "\n".join(lines) + "\n")
        parts.append("\n#END_TB\n")
    return "".join(parts)


def compressed(streams: dict[tuple[int, int], list[str]]) -> bytes:
    """The trace as `.tracez`, two frames a warp, with a dictionary."""
    zstandard = pytest.importorskip("zstandard")
    dictionary = b" ".join(line.encode() for line in streams[0, 0]) * 4
    trained = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    compressor = zstandard.ZstdCompressor(dict_data=trained, write_content_size=True)
    found = bytearray(HEAD.format(name="add", ctas=4).encode() + b"\0")
    found += struct.pack("<II", len(dictionary), 8) + dictionary
    index = bytearray(struct.pack("<I", 4))
    for cta in range(4):
        index += struct.pack("<11I", cta, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4)
        for warp in range(4):
            lines = streams[cta, warp]
            chunks = [lines[:8], lines[8:]]
            index += struct.pack("<IIQ", len(lines), 2, len(found)) + struct.pack("<II", *map(len, chunks))
            found += struct.pack("<II", len(lines), 2)
            for chunk in chunks:
                frame = compressor.compress("\n".join(chunk).encode())
                found += struct.pack("<I", len(frame)) + frame
    at = len(found)
    return bytes(found + index + struct.pack("<Q", at))


def test_a_kernel_takes_the_same_time_from_its_code_and_from_a_trace(
    streams: dict[tuple[int, int], list[str]], tmp_path: Path
) -> None:
    file = tmp_path / "kernel-1.traceg"
    file.write_text(written(streams), encoding="utf-8")
    traced = simulate(str(file), A100).record.kernels[0]
    text = f"{FOLDER / 'add.sm80.sass'}:add grid=4 block=128 x=fp32[2048] y=fp32[2048] out=fp32[2048] n=2000"
    executed = simulate(text, A100).record.kernels[0]
    assert traced.counters["warp_instructions"] == executed.counters["warp_instructions"]
    for name in ("l2_write_bytes", "l1_read_bytes"):
        assert traced.counters[name] == executed.counters[name]
    assert traced.cycles == pytest.approx(executed.cycles, rel=0.03)
    assert simulate(str(file), A100).record.kernels[0].cycles == traced.cycles  # behind a launch of the other kind


def test_the_listing_of_a_trace_has_the_control_words_that_were_rebuilt(
    streams: dict[tuple[int, int], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kernel-1.traceg"
    file.write_text(written(streams), encoding="utf-8")
    assert main(["run", str(file), "--arch", A100, "--listing"]) == 0
    lines = capsys.readouterr().out.splitlines()
    load = next(i for i, line in enumerate(lines) if "LDG" in line)
    waits = next(line for line in lines[load + 1 :] if "FADD" in line)
    scoreboard = re.search(r" w(\d) ", lines[load])
    assert scoreboard is not None
    assert f"after {scoreboard[1]}" in waits or f",{scoreboard[1]}" in waits


def test_each_form_of_a_trace_is_read(streams: dict[tuple[int, int], list[str]], tmp_path: Path) -> None:
    text = written(streams)
    contents = {"k.traceg": text.encode(), "k.traceg.xz": lzma.compress(text.encode()), "k.tracez": compressed(streams)}
    found = []
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        found.append(read_trace(str(tmp_path / name)))
    for one in found:
        assert (one.name, one.grid, one.registers, len(one.warps)) == ("add", (4, 1, 1), 18, 16)
        assert one.code == found[0].code
        assert [warp.rows for warp in one.warps.values()] == [warp.rows for warp in found[0].warps.values()]
        np.testing.assert_array_equal(one.addresses, found[0].addresses)


def one_warp(*lines: str, head: str = "") -> str:
    """A trace in which the first warp alone executes anything."""
    others = "".join(f"warp = {number}\ninsts = 0\n" for number in (1, 2, 3))
    return (
        HEAD.format(name="k", ctas=1) + head + "#BEGIN_TB\nthread block = 0,0,0\nwarp = 0\n"
        f"insts = {len(lines)}\n" + "".join(f"{line}\n" for line in lines) + others + "#END_TB\n"
    )


def test_addresses_are_lists_strides_and_differences(tmp_path: Path) -> None:
    file = tmp_path / "k.traceg"
    file.write_text(
        one_warp(
            "0010 0000000f 1 R4 LDG.E 1 R2 4 0 0x7f0000000100 0x7f0000000200 0x7f0000000300 0x7f0000000400",
            "0020 ffffffff 1 R4 LDG.E 1 R2 4 1 0x7f0000000100 4",
            "0030 00000015 1 R4 LDG.E 1 R2 4 2 0x7f0000000100 64 -32",
            "0040 ffffffff 0 BAR.SYNC 0 0 0",
        ),
        encoding="utf-8",
    )
    found = read_trace(str(file))
    base = 0x7F0000000100
    assert found.addresses[0][:5].tolist() == [base, base + 256, base + 512, base + 768, 0]
    assert found.addresses[1].tolist() == [base + 4 * lane for lane in range(32)]
    assert found.addresses[2][:5].tolist() == [base, 0, base + 64, 0, base + 32]
    report = simulate(str(file), A100)
    assert report.record.kernels[0].counters["l1_read_bytes"] == 32 * (4 + 4 + 3)
    assert report.time_us < 10  # a barrier that the other warps of the block never reach ends the trace


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-kernel name = k\n", "is no trace of Accel-Sim"),
        (one_warp("0010 ffffffff 1 R4"), "line 18: '0010 ffffffff 1 R4' is no instruction"),
        (one_warp("0010 ffffffff 1 R4 LDG.E 1 R2 4 7 0x0"), "line 18: .* is no instruction"),
        (one_warp("0010 ffffffff 0 NOP 0 0").replace("insts = 1", "insts = 2"), "line 19: .*1 instructions fewer"),
        (one_warp().replace("0,0,0", "3,0,0"), r"line 15: thread block 3,0,0 lies outside of the grid 1,1,1"),
        (one_warp(head="-grid dim = (1,1\n"), r"line 14: grid dim = \(1,1 cannot be read"),
        (one_warp().replace("warp = 3\ninsts = 0\n", ""), r"has 3 of 4 warps \(1 thread blocks of 4\); trace all"),
        (HEAD.format(name="k", ctas=7) + one_warp().partition("lineinfo = 0\n")[2], "has 4 of 28 warps"),
        (one_warp().replace("warp = 3", "warp = 4"), r"has a warp 4, a thread block of \(128, 1, 1\) has 4"),
        (one_warp("0010 ffffffff 1 R4 LDG.E 1 R2 -4"), "line 18: LDG.E accesses -4 bytes a thread; must be 0, 1, 2"),
        (one_warp(f"0010 ffffffff 1 R4 LDG.E 1 R2 {2**40} 1 0x0 4"), "LDG.E accesses 1099511627776 bytes a thread"),
        (one_warp("0010 ffffffff 1 R4 LDG.E 1 R2 0"), "PC 0010: LDG.E: has no width and no addresses"),
        (one_warp("0010 ffffffff 1 R999 FADD 1 R2 0"), "line 18: register R999: the last is R255"),
        (one_warp("0010 1ffffffff 1 R4 FADD 1 R2 0"), "line 18: .* is no instruction"),
        (one_warp("0010 ffffffff 1 R4 LDG.E 1 R2 4 1 0x0 -4"), "line 18: addresses -0x7c to 0x0: must be 0 to"),
        (one_warp(head="-shmem = -1\n"), "line 14: shmem = -1 cannot be read: must be 0 to 1048576"),
        (one_warp(head="-grid dim = (-1,1,1)\n"), r"grid dim = \(-1,1,1\) cannot be read: must be 1 to"),
        (one_warp(head="-block dim = (1024,2,1)\n"), r"block dim = \(1024,2,1\) cannot be read: must be 1 to 1024"),
        (one_warp("0010 ffffffff 1 R4 FROB 1 R2 0"), r"opcode FROB is not known"),
        (one_warp("0010 ffffffff 0 UTMALDG.2D 0 0"), "PC 0010: UTMALDG.2D: traces do not say what it does"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "k.traceg"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        simulate(str(file), A100)


def test_damaged_files(tmp_path: Path) -> None:
    for name in ("k.tracez", "k.traceg.xz", "none.traceg"):
        if not name.startswith("none"):
            (tmp_path / name).write_bytes(b"-kernel name = k\n\0\1\2")
        with pytest.raises(InputError, match=r"damaged|is no .xz file|cannot be read"):
            simulate(str(tmp_path / name), A100)
    with pytest.raises(InputError, match="a trace has its launch in it; leave grid=3 out"):
        simulate(f"{tmp_path / 'none.traceg'} grid=3", A100)
