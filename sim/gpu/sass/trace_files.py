"""Reads Accel-Sim's traces of kernels: `.traceg` (text), `.traceg.xz`, and `.tracez` (its instructions in zstd frames).

A line is an instruction of a warp: address, mask of lanes, registers written, opcode, registers read, bytes, addresses
(all of them, a base and a stride, or a base and differences), perhaps an immediate. What is not understood is an
InputError with its line.
"""

from __future__ import annotations

import io
import lzma
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from arch import reading
from arch.errors import InputError
from sim.gpu.sass.tables import LANES

_HEADER = re.compile(r"-(?P<key>[^=]+?)\s*=\s*(?P<value>.*)")
_BLOCK = re.compile(r"thread block = (\d+),(\d+),(\d+)")
_COUNT = re.compile(r"(?P<key>warp|insts) = (?P<value>\d+)")
_LIST, _STRIDE, _DELTAS = 0, 1, 2

_NUMBERS = {
    "shmem": ("shared_bytes", 10, (0, 1 << 20)),
    "nregs": ("registers", 10, (0, 255)),
    "binary version": ("generation", 10, (10, 999)),
    "shmem base_addr": ("shared_base", 16, (0, 1 << 56)),
    "local mem base_addr": ("local_base", 16, (0, 1 << 56)),
    "accelsim tracer version": ("version", 10, (0, 99)),
}
"""Headers that are numbers: the field, its base, the smallest and largest that a kernel can have."""

_SIDES = {"grid dim": (1, (1 << 31) - 1), "block dim": (1, 1024)}
_MOST_THREADS = 1024
_WIDTHS = (0, 1, 2, 4, 8, 16, 32)
"""Bytes that a thread accesses."""

_MOST_ADDRESS, _MOST_PC, _MOST_REGISTER, _MOST_OPERANDS = 1 << 56, 1 << 24, 255, 16


MOST_BYTES = 512 << 20
"""Of a trace, unpacked."""


@dataclass(frozen=True)
class TracedRow:
    """An instruction of the code, as all warps have it. immediate: behind its addresses, where there is one."""

    pc: int
    opcode: str
    written: tuple[str, ...]
    read: tuple[str, ...]
    size_bytes: int
    immediate: int


@dataclass
class TracedWarp:
    """What a warp has executed: places in the code, masks of lanes, places in the addresses (-1 none)."""

    rows: list[int] = field(default_factory=list)
    masks: list[int] = field(default_factory=list)
    accesses: list[int] = field(default_factory=list)


@dataclass
class TracedKernel:
    """A kernel as it ran. warps: by number of the CTA (x first) and of the warp. addresses: of lanes, an array each."""

    name: str = ""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    registers: int = 0
    generation: int = 0
    shared_base: int = 0
    local_base: int = 0
    version: int = 0
    lines: bool = False
    code: list[TracedRow] = field(default_factory=list)
    warps: dict[tuple[int, int], TracedWarp] = field(default_factory=dict)
    addresses: list[np.ndarray] = field(default_factory=list)


def read_trace(path: str) -> TracedKernel:
    """A kernel's trace. InputError for a file that is none, with the line that is wrong."""
    reader = _Reader(path)
    try:
        if path.endswith(".tracez"):
            reader.compressed(reading.content(path))
        elif path.endswith(".xz"):
            with lzma.open(io.BytesIO(reading.content(path))) as packed:
                reader.text(reading.unpacked(packed, path, MOST_BYTES).decode("utf-8", errors="replace"))
        else:
            reader.text(reading.text(path, most_bytes=MOST_BYTES, errors="replace"))
    except (lzma.LZMAError, EOFError) as error:
        raise InputError(f"{path}: is no .xz file: {error}") from None
    return reader.done()


class _Reader:
    """Builds the kernel line by line."""

    def __init__(self, path: str) -> None:
        self.path, self.found = path, TracedKernel()
        self.places: dict[TracedRow, int] = {}
        self.seen: dict[bytes, int] = {}
        self.number = 0

    def wrong(self, what: str) -> InputError:
        return InputError(f"{self.path} line {self.number}: {what}")

    def done(self) -> TracedKernel:
        """The kernel; InputError where a header or instructions are missing: a warp that is not in the trace would run
        in no time."""
        found = self.found
        if not found.name or not found.warps:
            raise InputError(f"{self.path}: is no trace of Accel-Sim: it has no kernel name or no instruction")
        ctas, warps = math.prod(found.grid), -(-math.prod(found.block) // LANES)
        beyond = max(warp for _, warp in found.warps)
        if beyond >= warps:
            raise InputError(f"{self.path}: has a warp {beyond}, a thread block of {found.block} has {warps}")
        if len(found.warps) != ctas * warps:
            raise InputError(
                f"{self.path}: has {len(found.warps)} of {ctas * warps} warps ({ctas} thread blocks of {warps}); trace "
                "all of them"
            )
        return found

    def text(self, content: str) -> None:
        """A whole `.traceg`."""
        cta, warp, left = -1, -1, 0
        for self.number, line in enumerate(content.splitlines(), start=1):
            words = line.split()
            if not words or (words[0].startswith("#") and words[0] not in ("#BEGIN_TB", "#END_TB")):
                continue
            if line.startswith("-") and cta < 0:
                self.header(line)
            elif left and (words[0] in ("#BEGIN_TB", "#END_TB") or words[1:2] == ["="]):
                raise self.wrong(f"the warp before has {left} instructions fewer than it says")
            elif words[0] in ("#BEGIN_TB", "#END_TB"):
                warp = -1
            elif match := _BLOCK.fullmatch(line.strip()):
                cta = self.cta(*(int(word) for word in match.groups()))
            elif match := _COUNT.fullmatch(line.strip()):
                if match["key"] == "warp":
                    warp = int(match["value"])
                    self.found.warps[cta, warp] = TracedWarp()
                else:
                    left = int(match["value"])
            else:
                if cta < 0 or warp < 0 or left < 1:
                    raise self.wrong(f"{line[:60]!r} is outside of a warp's instructions")
                left -= 1
                self.instruction(words, self.found.warps[cta, warp])
        if left:
            raise self.wrong(f"the file ends {left} instructions before the warp does")

    def compressed(self, content: bytes) -> None:
        """A whole `.tracez`: header text, dictionary, frames, and at the end their index."""
        try:
            import zstandard
        except ImportError:
            raise InputError(f"{self.path}: needs zstandard: pip install 'tilewave[accelsim]'") from None
        try:
            header, _, rest = content.partition(b"\0")
            for self.number, line in enumerate(header.decode("utf-8", errors="replace").splitlines(), start=1):
                if line.startswith("-"):
                    self.header(line)
            (size,) = struct.unpack_from("<I", rest)
            dictionary = zstandard.ZstdCompressionDict(rest[8 : 8 + size]) if size else None
            decompressor = zstandard.ZstdDecompressor(dict_data=dictionary)
            left = MOST_BYTES
            at: int = struct.unpack_from("<Q", content, len(content) - 8)[0]
            (ctas,) = struct.unpack_from("<I", content, at)
            at += 4
            for _ in range(ctas):
                x, y, z, *_, warps = struct.unpack_from("<11I", content, at)
                at += 44
                for number in range(warps):
                    count, frames, offset = struct.unpack_from("<IIQ", content, at)
                    at += 16 + 4 * frames
                    warp = self.found.warps[self.cta(x, y, z), number] = TracedWarp()
                    offset += 8
                    for _ in range(frames):
                        (size,) = struct.unpack_from("<I", content, offset)
                        packed = decompressor.stream_reader(content[offset + 4 : offset + 4 + size])
                        frame = reading.unpacked(packed, self.path, left)
                        left -= len(frame)
                        offset += 4 + size
                        for self.number, line in enumerate(frame.decode("utf-8", errors="replace").splitlines(), 1):
                            self.instruction(line.split(), warp)
                    if len(warp.rows) != count:
                        raise self.wrong(f"warp {number} of CTA {x},{y},{z} has not the {count} instructions it says")
        except (struct.error, zstandard.ZstdError, IndexError) as error:
            raise InputError(f"{self.path}: is a damaged .tracez: {error}") from None

    def header(self, line: str) -> None:
        """A line such as `-grid dim = (512,8,1)`."""
        match = _HEADER.fullmatch(line.strip())
        if match is None:
            raise self.wrong(f"{line[:60]!r} is no header such as -grid dim = (1,1,1)")
        key, value, found = match["key"].strip(), match["value"].strip(), self.found
        try:
            if key == "kernel name":
                found.name = value
            elif key in _SIDES:
                x, y, z = (_between(int(word), *_SIDES[key]) for word in value.strip("()").split(","))
                setattr(found, key.partition(" ")[0], (x, y, z))
                _between(math.prod(found.block), 1, _MOST_THREADS)
            elif key in _NUMBERS:
                name, base, limits = _NUMBERS[key]
                setattr(found, name, _between(int(value, base), *limits))
            elif key == "enable lineinfo":
                found.lines = value != "0"
        except ValueError:
            least, most = _SIDES.get(key) or _NUMBERS[key][2]
            raise self.wrong(f"{key} = {value[:40]} cannot be read: must be {least} to {most}") from None

    def cta(self, x: int, y: int, z: int) -> int:
        """The number of a CTA."""
        width, height, depth = self.found.grid
        if x >= width or y >= height or z >= depth:
            raise self.wrong(f"thread block {x},{y},{z} lies outside of the grid {width},{height},{depth}")
        return x + width * (y + height * z)

    def instruction(self, words: list[str], warp: TracedWarp) -> None:
        """One instruction of a warp."""
        at = iter(words)
        try:
            if self.found.version < 3:
                for _ in range(4):
                    next(at)
            if self.found.lines:
                next(at)
            pc, mask = _between(int(next(at), 16), 0, _MOST_PC), _between(int(next(at), 16), 0, (1 << LANES) - 1)
            written = self.registers(at)
            opcode = next(at)
            read = self.registers(at)
            size = int(next(at))
            if size not in _WIDTHS:
                raise self.wrong(f"{opcode} accesses {size} bytes a thread; must be {', '.join(map(str, _WIDTHS))}")
            access, left = -1, list[str]()
            if size > 0:
                access, left = self.access(list(at), mask)
            else:
                left = list(at)
            immediate = _between(int(left[0], 0), -(1 << 31), 1 << 32) if left else 0
        except InputError:
            raise
        except (StopIteration, ValueError, RuntimeError, IndexError, OverflowError):
            raise self.wrong(
                f"{' '.join(words)[:60]!r} is no instruction: PC mask written opcode read bytes addresses"
            ) from None
        row = TracedRow(pc, opcode, written, read, size, immediate)
        if row not in self.places:
            self.places[row] = len(self.found.code)
            self.found.code.append(row)
        warp.rows.append(self.places[row])
        warp.masks.append(mask)
        warp.accesses.append(access)

    def registers(self, words: Iterator[str]) -> tuple[str, ...]:
        """Names of registers behind their number."""
        names = tuple(next(words) for _ in range(_between(int(next(words)), 0, _MOST_OPERANDS)))
        for name in names:
            number = name.lstrip("UR")
            if number.isdecimal() and int(number[:9]) > _MOST_REGISTER:
                raise self.wrong(f"register {name[:40]}: the last is R{_MOST_REGISTER}")
        return names

    def access(self, words: list[str], mask: int) -> tuple[int, list[str]]:
        """The place of an access among the addresses, and the words behind it."""
        lanes = [lane for lane in range(LANES) if mask >> lane & 1]
        found = np.zeros(LANES, dtype=np.int64)
        mode, words = int(words[0]), words[1:]
        if mode == _LIST:
            found[lanes] = [int(word, 16) for word in words[: len(lanes)]]
            words = words[len(lanes) :]
        elif mode == _STRIDE:
            base, stride = int(words[0], 16), int(words[1])
            found[lanes] = [base + i * stride for i in range(len(lanes))]
            words = words[2:]
        elif mode == _DELTAS:
            deltas = [int(word) for word in words[1 : len(lanes)]]
            found[lanes] = int(words[0], 16) + np.cumsum([0, *deltas])
            words = words[len(lanes) :] if lanes else words[1:]
        else:
            raise ValueError
        if found.min() < 0 or found.max() > _MOST_ADDRESS:
            raise self.wrong(f"addresses {found.min():#x} to {found.max():#x}: must be 0 to {_MOST_ADDRESS:#x}")
        key = found.tobytes()
        if key not in self.seen:
            self.seen[key] = len(self.found.addresses)
            self.found.addresses.append(found)
        return self.seen[key], words


def _between(number: int, least: int, most: int) -> int:
    """The number; ValueError where it is less or more than it can be."""
    if not least <= number <= most:
        raise ValueError
    return number


def instructions(kernel: TracedKernel) -> Iterator[tuple[int, int, TracedWarp]]:
    """Warps with their numbers, CTA by CTA."""
    for (cta, warp), traced in sorted(kernel.warps.items()):
        yield cta, warp, traced
