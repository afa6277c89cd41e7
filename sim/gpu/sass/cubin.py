"""What a cubin says of its kernels: registers, shared memory, parameters; and its disassembly by `nvdisasm`."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import json
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arch import reading
from arch.errors import InputError, what_is_wrong
from sim.gpu.sass.text import Function, read_functions

HOPPER = 90
RESERVED_BYTES = 1024
"""Of shared memory, for the system: from Hopper on they lie below those of a CTA, whose addresses begin behind them."""

_CONSTANTS = re.compile(r"c\[0x0\]\[([^\]]+)\]")
_PLAIN = re.compile(r"RZ|0x[0-9a-f]+")
_LARGEST_IN_REGISTERS = 16
"""Bytes of a parameter that code reads as a number, and not by its address."""
_BANK = re.compile(r"c\[(0x[0-9a-f]+)\]")
_NO_BITS = 8
_VARIABLES_ALIGNED = 256
_HEADER = "// tilewave: "
_FORMATS_IN_PLACE = {1: "none", 2: "byte", 3: "half"}
_PARAMETER, _PARAMETER_BANK, _REGISTERS, _CLUSTER = 0x17, 0x0A, 0x2F, 0x3D


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel as a compiler left it. sm: compute capability, 80 for 8.0. parameters: offset and size in bytes of each,
    from the first one's place in the constant bank, `bank_bytes`. shared_bytes: what it declares itself. function: its
    instructions. cluster: CTAs of a cluster that it asks for, None where the launch says it. constants: of other banks
    that the code names, by number, in hexadecimal. variables: what the cubin's variables in device memory hold, all of
    them side by side, likewise. pointers: places in bank 4 that hold the address of one, with its place among them."""

    name: str
    sm: int
    registers: int
    shared_bytes: int
    bank_bytes: int
    parameters: tuple[tuple[int, int], ...]
    function: Function
    cluster: tuple[int, int, int] | None = None
    constants: tuple[tuple[int, str], ...] = ()
    variables: str = ""
    pointers: tuple[tuple[int, int], ...] = ()

    def reads_parameter(self, number: int) -> bool:
        """Whether its code may read a parameter. Of constants whose address is computed, and of code that takes the
        address of its parameters, nobody can tell."""
        offset, size = self.parameters[number]
        begin, end = self.bank_bytes + offset, self.bank_bytes + offset + size
        if size > _LARGEST_IN_REGISTERS:  # a structure, or a tensor map, which is named by its address
            return True
        for one in self.function.instructions:
            width = 16 if ".128" in one.opcode else 8 if ".64" in one.opcode else 4
            for operand in one.operands:
                for place in _CONSTANTS.findall(operand):
                    if not _PLAIN.fullmatch(place) or begin - width < int(place.replace("RZ", "0"), 16) < end:
                        return True
        return False

    def written(self, disassembly: str) -> str:
        """As a text file that `read_compiled` reads without tools."""
        facts = {k: v for k, v in asdict(self).items() if k != "function" and v not in (None, (), "")}
        lines = (re.sub(r"[ \t]+", " ", line) for line in disassembly.splitlines())
        return "\n".join([f"{_HEADER}{json.dumps(facts)}", *lines, ""])


def read_compiled(path: str, kernel: str = "") -> CompiledKernel:
    """A kernel of a cubin, or of a text that `CompiledKernel.written` made. kernel: its name, if there are several.

    Raises InputError for a file that is neither, and where `nvdisasm` is missing.
    """
    content = reading.content(path, f"--cubin {path}")
    if content[:4] == b"\x7fELF":
        return kernel_of(content, disassemble(content), kernel, path)
    text = content.decode("utf-8", errors="replace")
    if not text.startswith(_HEADER):
        raise InputError(f"--cubin {path}: is no cubin (an ELF file), nor a disassembly that tilewave wrote")
    header, _, body = text.partition("\n")
    facts = reading.document(header.removeprefix(_HEADER), f"--cubin {path}")
    try:
        found = _facts(facts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"--cubin {path}: its first line is damaged ({what_is_wrong(error)})") from None
    return CompiledKernel(**found, function=_chosen(read_functions(body), kernel or found["name"], path))


def _facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What stands in front of a disassembly, each of its kind; ValueError and its like where one is not."""
    found: dict[str, Any] = {key: _whole(facts[key]) for key in ("sm", "registers", "shared_bytes", "bank_bytes")}
    for key in ("parameters", "pointers"):
        found[key] = tuple((_whole(a), _whole(b)) for a, b in facts.get(key, ()))
    found["constants"] = tuple((_whole(bank), bytes.fromhex(code).hex()) for bank, code in facts.get("constants", ()))
    found["variables"] = bytes.fromhex(facts.get("variables", "")).hex()
    if facts.get("cluster"):
        x, y, z = map(_whole, facts["cluster"])
        found["cluster"] = (x, y, z)
    return {**found, "name": str(facts["name"])}


def _whole(value: Any) -> int:
    """A whole number from 0 on, of 32 bits; ValueError for anything else."""
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise ValueError(f"{value!r:.40} is no whole number")
    return value


def kernel_of(cubin: bytes, disassembly: str, kernel: str, path: str) -> CompiledKernel:
    """A kernel of a cubin with its disassembly."""
    sections = _sections(cubin, path)
    function = _chosen(read_functions(disassembly), kernel, path)
    name = function.name
    facts = list(_attributes(sections.get(f".nv.info.{name}", b"")))
    parameters = sorted(
        (struct.unpack_from("<H", value, 4)[0], struct.unpack_from("<H", value, 6)[0], _parameter_size(value))
        for kind, value in facts
        if kind == _PARAMETER
    )
    clusters = [struct.unpack_from("<III", value) for kind, value in facts if kind == _CLUSTER]
    banks = [struct.unpack_from("<H", value, 4)[0] for kind, value in facts if kind == _PARAMETER_BANK]
    header = struct.unpack_from("<I", cubin, 48)[0]
    sm = header & 0xFF if (header >> 8) & 0xFF not in range(20, 121) else (header >> 8) & 0xFF
    registers = _register_count(sections, name)
    # From Hopper on the system's kibibyte is part of that size; the machine's description has it by itself.
    shared = _sizes(cubin).get(f".nv.shared.{name}", 0)
    return CompiledKernel(
        name=name,
        sm=sm,
        registers=registers,
        shared_bytes=max(0, shared - RESERVED_BYTES) if sm >= HOPPER else shared,
        bank_bytes=banks[0] if banks else 0x160,
        parameters=tuple((offset, size) for _, offset, size in parameters),
        function=function,
        cluster=clusters[0] if clusters else None,
        **_data(cubin, sections, function),
    )


def _data(cubin: bytes, sections: dict[str, bytes], function: Function) -> dict[str, Any]:
    """Banks of constants and variables that the code of a kernel names."""
    text = " ".join(operand for one in function.instructions for operand in one.operands)
    banks = {int(bank, 16) for bank in _BANK.findall(text)} - {0}
    own = {bank: sections.get(f".nv.constant{bank}.{function.name}", b"") for bank in banks}
    found = {bank: own[bank] or sections.get(f".nv.constant{bank}", b"") for bank in banks}
    constants = tuple((bank, content.hex()) for bank, content in sorted(found.items()))
    if 4 not in banks:
        return {"constants": constants}
    headers = list(_headers(cubin))
    first: dict[int, int] = {}
    variables = b""
    for number, (name, kind, offset, size) in enumerate(headers):
        if name in (".nv.global.init", ".nv.global"):
            variables += bytes(-len(variables) % _VARIABLES_ALIGNED)
            first[number] = len(variables)
            variables += bytes(size) if kind == _NO_BITS else cubin[offset : offset + size]
    symbols, pointers = sections.get(".symtab", b""), []
    for name, width in ((".rel.nv.constant4", 16), (".rela.nv.constant4", 24)):
        relocations = sections.get(name, b"")
        for at in range(0, len(relocations), width):
            place, info = struct.unpack_from("<QQ", relocations, at)
            added = struct.unpack_from("<q", relocations, at + 16)[0] if width == 24 else 0
            section, value = (
                struct.unpack_from(f, symbols, 24 * (info >> 32) + o)[0] for f, o in (("<H", 6), ("<Q", 8))
            )
            if section in first:
                pointers.append((place, first[section] + value + added))
    return {"constants": constants, "variables": variables.hex(), "pointers": tuple(sorted(pointers))}


def _parameter_size(value: bytes) -> int:
    """Bytes of a parameter: bits 18 and up of its last word, in steps of one byte."""
    return int(struct.unpack_from("<I", value, 8)[0] >> 18)


def _register_count(sections: dict[str, bytes], name: str) -> int:
    """Registers of a thread. Cubins of one kernel name them once; of several, by the number of its symbol."""
    symbols = sections.get(".symtab", b"")
    strings = sections.get(".strtab", b"")
    index = -1
    for i in range(len(symbols) // 24):
        at = struct.unpack_from("<I", symbols, 24 * i)[0]
        end = strings.find(b"\0", at)
        if strings[at:end].decode(errors="replace") == name:
            index = i
    for kind, value in _attributes(sections.get(".nv.info", b"")):
        if kind == _REGISTERS and struct.unpack_from("<I", value)[0] == index:
            return int(struct.unpack_from("<I", value, 4)[0])
    raise InputError(f"kernel {name}: the cubin does not say how many registers it takes")


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """Attributes of an `.nv.info` section: number and value."""
    at = 0
    while at + 4 <= len(info):
        form, kind = info[at], info[at + 1]
        if form in _FORMATS_IN_PLACE:
            yield kind, info[at + 2 : at + 4]
            at += 4
        else:
            size = struct.unpack_from("<H", info, at + 2)[0]
            yield kind, info[at + 4 : at + 4 + size]
            at += 4 + size


def _headers(cubin: bytes) -> Iterator[tuple[str, int, int, int]]:
    """Sections of an ELF file: name, type, offset, size."""
    start, width, count, names = *struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<HHH", cubin, 58)
    rows = [struct.unpack_from("<IIQQQQ", cubin, start + i * width) for i in range(count)]
    strings = rows[names][4]
    for name, kind, _, _, offset, size in rows:
        at = strings + name
        yield cubin[at : cubin.index(b"\0", at)].decode(errors="replace"), kind, offset, size


def _sections(cubin: bytes, path: str) -> dict[str, bytes]:
    try:
        return {name: cubin[offset : offset + size] for name, _, offset, size in _headers(cubin)}
    except (struct.error, ValueError):
        raise InputError(f"--cubin {path}: is a damaged ELF file") from None


def _sizes(cubin: bytes) -> dict[str, int]:
    return {name: size for name, _, _, size in _headers(cubin)}


def _chosen(functions: dict[str, Function], kernel: str, path: str) -> Function:
    """The function of a name; without one the only function."""
    if not kernel and len(functions) == 1:
        return next(iter(functions.values()))
    if kernel not in functions:
        near = difflib.get_close_matches(kernel, functions, n=1, cutoff=0.0)[0]
        missing = f"has no kernel {kernel}" if kernel else "holds several kernels, name one with --kernel"
        raise InputError(f"--cubin {path}: {missing}; there are {', '.join(functions)}; did you mean {near}?")
    return functions[kernel]


# ---- nvdisasm


def disassemble(cubin: bytes) -> str:
    """The text that `nvdisasm -c -hex -g` prints of a cubin."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([_tool(), "-c", "-hex", "-g", str(file)], capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        words = done.stderr.strip().splitlines()
        known = "compiled kernels run on sm_75 to sm_90"
        raise InputError(f"nvdisasm: {words[-1] if words else 'printed nothing'}; {known}")
    return done.stdout


def _tool() -> str:
    """Where `nvdisasm` is: on the path, of the wheel nvidia-cuda-nvdisasm, or that of Triton."""
    if found := shutil.which("nvdisasm"):
        return found
    try:
        for file in importlib.metadata.files("nvidia-cuda-nvdisasm") or ():
            if file.name == "nvdisasm":
                return str(file.locate())
    except importlib.metadata.PackageNotFoundError:
        pass
    triton = importlib.util.find_spec("triton")
    if triton and triton.origin:
        tool = Path(triton.origin).parent / "backends/nvidia/bin/nvdisasm"
        if tool.is_file():
            return str(tool)
    raise InputError("a cubin needs nvdisasm, which is not installed: pip install 'tilewave[cubin]'")
