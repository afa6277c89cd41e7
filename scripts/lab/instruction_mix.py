#!/usr/bin/env python3
"""Counts instructions of compiled kernels by class and section, next to counts that others have published.

    scripts/lab/instruction_mix.py instruction_mix.csv [--only NAME] [--cuda DIR]

Needs Triton, no GPU; with --cuda products of CUTLASS 2.x are compiled too (scripts/lab/cutlass_kernels.py says what DIR
holds). The file has a row for each kernel, section and class of instructions: static counts along the hot
path of one warp, from the disassembly of kernels that were compiled with Triton 3.9.0, CUTLASS and nvcc 13. Kernels in
Triton are compiled here again and counted from what `sim.gpu.sass` reads of them. All classes of all sections must
agree, as must the sums of stall counts. Kernels whose source is not here are named with the reason.

The path: conditional branches fall through, a branch back ends a loop, out-of-line code is left out. A kernel without a
loop has three sections: up to its first load, up to its last store, the rest.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.lab.cutlass_kernels import product_of  # noqa: E402
from sim.gpu.sass.cubin import disassemble, kernel_of  # noqa: E402
from sim.gpu.sass.forms import form_of  # noqa: E402
from sim.gpu.sass.needed import target_of  # noqa: E402
from sim.gpu.sass.text import Function, Instruction  # noqa: E402

KERNELS = {
    "counted": ROOT / "scripts" / "lab" / "kernels" / "counted.py",
    "tutorials": ROOT / "scripts" / "lab" / "kernels" / "tutorials.py",
}
NOT_REBUILT = {
    "attention": "the source of this attention kernel is not published; the tutorial's differs in its addresses",
    "CUTLASS sm90": "needs CUTLASS's headers at the stated commit; its roles are cut by hand",
    "CUTLASS": "needs nvcc 13.0.88 and CUTLASS's headers (--cuda)",
    "FA2": "needs flash-attention at the stated commit, CUTLASS's headers and nvcc 13.0.88",
    "FA3": "needs flash-attention at the stated commit, CUTLASS's headers and nvcc 13.0.88",
    "CUDA": "the source of these CUDA kernels is not published; written anew they compute addresses otherwise",
}
"""By a part of the kernel's name."""
TARGETS = {"sm_75": 75, "sm_80": 80, "sm_90a": 90}

_LONE_UNIFORM = ("UMOV", "ULDC", "VOTEU", "UTMACMDFLUSH", "UTMACCTL")
_TWO_PARTS = ("MUFU", "F2F", "BAR", "SYNCS", "WARPGROUP", "UTMALDG", "UTMASTG")
_ACCESSES = ("LD", "LDG", "STG", "LDS", "STS", "LDL", "STL", "LDGSTS")
_WHOLE = ("HMMA", "LDSM", "STSM", "HGMMA")


def class_of(one: Instruction) -> str:
    """The class under which an instruction is counted."""
    name, *parts = one.opcode.split(".")
    if one.guard == "!PT" and name == "LDS":
        return "NOP(@!PT LDS)"
    if name == "HFMA2" and {*one.operands[1:3]} <= {"RZ", "-RZ"}:
        return "MOV(HFMA2)"
    if name == "IMAD" and parts and parts[0] in ("MOV", "SHL", "IADD", "WIDE"):
        return f"IMAD.{parts[0]}"
    if name in ("FSETP", "FSEL"):
        return "FSETP/FSEL"
    if name in _ACCESSES:
        width = next((part for part in parts if part in ("64", "128")), "32")
        return f"{name}.{width}"
    if name in _TWO_PARTS:
        return f"{name}.{parts[0]}"
    if name in _WHOLE:
        return one.opcode
    if name == "CALL":
        return "BRA"
    return "UNIFORM" if name.startswith("U") and name not in _LONE_UNIFORM else name


def counts(section: Sequence[Instruction]) -> Counter[str]:
    """Instructions of a section by class, all of them, those with a guard, and the sum of their stall counts."""
    found = Counter(class_of(one) for one in section)
    found["TOTAL"] = len(section)
    found["PREDICATED"] = sum(one.guard not in ("", "!PT") for one in section)
    found["STALL_SUM"] = sum(one.control.stall for one in section)
    return found


def _walk(function: Function, taken: int = -1) -> tuple[list[int], dict[int, int]]:
    """Rows of the hot path, each once, and where its branches back go, by the row that branches. taken: the row of a
    branch that is taken although it depends on something."""
    forms = [form_of(one) for one in function.instructions]
    targets = [target_of(form, function) if form.parts[0] in ("BRA", "CALL") else None for form in forms]
    path: list[int] = []
    back: dict[int, int] = {}
    row = 0
    while row < len(forms):
        path.append(row)
        form, target = forms[row], targets[row]
        always = (not form.guard and not form.inputs) or row == taken
        if form.parts[0] == "EXIT" and always:
            break
        if target is not None and target <= row:
            back[row] = target
        row = target if target is not None and target > row and always else row + 1
    return path, back


def sections(function: Function, taken: int = -1) -> list[tuple[bool, list[Instruction]]]:
    """The path cut at its loops: whether a section is one, and its instructions."""
    path, back = _walk(function, taken)
    heads, found = set(back.values()), [(False, list[Instruction]())]
    for row in path:
        if row in heads:
            found.append((True, []))
        found[-1][1].append(function.instructions[row])
        if row in back:
            found.append((False, []))
    return found


def straight(function: Function) -> list[list[Instruction]]:
    """The three sections of a kernel without a loop."""
    path = [function.instructions[row] for row in _walk(function)[0]]
    first = next(k for k, one in enumerate(path) if one.opcode.startswith("LDG"))
    last = max(k for k, one in enumerate(path) if one.opcode.startswith("STG"))
    return [path[:first], path[first : last + 1], path[last + 1 :]]


def looped(function: Function) -> list[list[Instruction]]:
    """Its sections as they are counted: what is before all loops, the loops, what follows each."""
    found = sections(function)
    first, *rest = [section for loop, section in found if not loop]
    return [first, *(section for loop, section in found if loop), *rest]


def without_c(function: Function) -> int:
    """The branch of an epilogue that leaves C out: it depends on the only comparison of floating-point numbers."""
    compared = ""
    for row, one in enumerate(function.instructions):
        if one.opcode.startswith("FSETP"):
            compared = one.operands[0]
        if compared and one.opcode == "BRA" and one.guard == f"!{compared}":
            return row
    raise ValueError("no branch depends on beta")


def of_product(function: Function) -> list[list[Instruction]]:
    """What is before the loop of a product of CUTLASS, the loop, what follows without C and with it."""
    before, loop, behind = (section for _, section in sections(function))
    return [before, loop, sections(function, without_c(function))[2][1], behind]


@dataclass(frozen=True)
class Build:
    """How a kernel is compiled. types: of parameters; odd: those that are not known to be multiples of 16."""

    file: str
    function: str
    types: Mapping[str, str]
    constants: Mapping[str, int]
    options: Mapping[str, int]
    straight: bool
    odd: Sequence[str] = field(default=())

    def sections(self, target: int) -> list[list[Instruction]]:
        """Its sections, compiled for a compute capability."""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        fn = getattr(_module(self.file), self.function)
        signature = {**self.types, **dict.fromkeys(self.constants, "constexpr")}
        divisible = {
            (fn.arg_names.index(name),): [["tt.divisibility", 16]]
            for name, kind in self.types.items()
            if name not in self.odd and kind.startswith(("*", "i"))
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = ASTSource(fn, signature, dict(self.constants), divisible)
            made = triton.compile(source, target=GPUTarget("cuda", target, 32), options=dict(self.options))
        name = made.metadata.name
        function = kernel_of(made.asm["cubin"], disassemble(made.asm["cubin"]), name, name).function
        return straight(function) if self.straight else looped(function)


@cache
def _module(file: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(file, KERNELS[file])
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _numbers(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "i32")


def build_of(kernel: str, dtype: str, tile: str) -> Build | None:
    """How a counted kernel is compiled; None for one whose source is not here."""
    numbers = [int(word) for word in re.findall(r"\d+", tile)]
    array = f"*{dtype.partition('->')[0]}"
    norm = {"x": array, "y": array, "w": array}
    rows = {"out": array, "x": array, **_numbers("in_stride", "out_stride")}
    match kernel:
        case "Triton vector add":
            types = {"x": array, "y": array, "out": array, **_numbers("n")}
            return Build("counted", "add", types, {"BLOCK": numbers[0]}, {"num_warps": numbers[1]}, True)
        case "Triton softmax, one row per program":
            types = {**rows, **_numbers("columns")}
            return Build("counted", "softmax", types, {"BLOCK": numbers[1]}, {"num_warps": numbers[2]}, True)
        case "Triton softmax, persistent over rows":
            types, constants = {**rows, **_numbers("rows", "columns")}, {"BLOCK": numbers[1], "STAGES": numbers[3]}
            return Build("counted", "softmax_rows", types, constants, {"num_warps": numbers[2]}, False, ("rows",))
        case "Triton layer norm fwd, row in registers":
            types = {**norm, "b": array, **_numbers("stride", "n"), "eps": "fp32"}
            return Build("counted", "layer_norm", types, {"BLOCK": numbers[1]}, {"num_warps": numbers[2]}, True)
        case "Triton RMS norm fwd, row in registers":
            types = {**norm, **_numbers("stride", "n"), "eps": "fp32"}
            return Build("counted", "rms_norm", types, {"BLOCK": numbers[1]}, {"num_warps": numbers[2]}, True)
        case "Triton layer norm fwd, three passes over the row":
            types = {**norm, "b": array, "mean": "*fp32", "rstd": "*fp32", **_numbers("stride", "n"), "eps": "fp32"}
            return Build("counted", "layer_norm_passes", types, {"BLOCK": numbers[0]}, {"num_warps": numbers[1]}, False)
        case "Triton matmul, pointer loads" | "Triton matmul, TMA descriptors":
            return _product(kernel, numbers)
    return None


def _product(kernel: str, numbers: Sequence[int]) -> Build:
    bm, bn, bk, warps, stages = numbers
    constants = {"BLOCK_M": bm, "BLOCK_N": bn, "BLOCK_K": bk, "GROUP_M": 8}
    options = {"num_warps": warps, "num_stages": stages}
    if "TMA" in kernel:
        boxes = {"a": (bm, bk), "b": (bn, bk), "c": (bm, bn)}
        types = {name: f"tensordesc<fp16[{rows},{columns}]>" for name, (rows, columns) in boxes.items()}
        return Build("counted", "matmul_tma", {**types, **_numbers("m", "n", "k")}, constants, options, False)
    types = {**dict.fromkeys("abc", "*fp16"), **_numbers("m", "n", "k", "stride_am", "stride_bk", "stride_cm")}
    ones = dict.fromkeys(("stride_ak", "stride_bn", "stride_cn"), 1)
    return Build("tutorials", "matmul", types, {**ones, **constants}, options, False)


Key = tuple[str, str, str, str, str]


def published(path: Path) -> dict[Key, list[tuple[str, Counter[str]]]]:
    """Sections of each kernel in the file, in its order: their name and their counts."""
    found: dict[Key, dict[str, Counter[str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = (row["kernel"], row["source"], row["arch"], row["dtype"], row["tile"])
            section = f"{row['section']}, {row['per']}"
            counted = found.setdefault(key, {}).setdefault(section, Counter())
            counted[row["opcode_class"]] = int(row["count"])
    return {key: list(sections_.items()) for key, sections_ in found.items()}


def differences(wanted: Sequence[tuple[str, Counter[str]]], own: Sequence[Sequence[Instruction]]) -> Iterator[str]:
    """What differs, a text each; nothing where all classes of all sections agree. What follows the last loop may be
    left out of what was counted."""
    if len(own) == len(wanted) + 1:
        own = own[: len(wanted)]
    if len(wanted) != len(own):
        yield f"{len(own)} sections, not {len(wanted)}"
    for (name, expected), section in zip(wanted, own, strict=False):
        found = counts(section)
        for one in sorted({*expected, *found}):
            if expected[one] != found[one]:
                yield f"{name}: {one} {found[one]}, not {expected[one]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each kernel, then how many agree; 1 where one that is rebuilt does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="kernels whose name has this in it")
    parser.add_argument("--cuda", type=Path, metavar="DIR", help="nvcc and the headers of CUTLASS")
    options = parser.parse_args(arguments)
    tally = Counter[str]()
    for (kernel, source, arch, dtype, tile), wanted in published(options.file).items():
        if options.only not in kernel:
            continue
        label = f"{kernel}, {arch}, {dtype}, {tile}"
        build, product = build_of(kernel, dtype, tile), product_of(kernel, arch, tile) if options.cuda else None
        if build is None and product is None:
            reason = next(text for part, text in NOT_REBUILT.items() if part in kernel)
            tally[f"not rebuilt ({source}): {reason}"] += 1
            continue
        if product is not None:
            own = of_product(product.compiled(options.cuda).function)
        else:
            assert build is not None
            own = build.sections(TARGETS[arch])
        apart = list(differences(wanted, own))
        tally["differ" if apart else "agree"] += 1
        print(f"{label}: {'; '.join(apart) or 'agrees'}", flush=True)
    print()
    for what, number in tally.items():
        print(f"{number:4} {what}")
    return int(tally["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
