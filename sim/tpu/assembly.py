"""Programs as text, one instruction a line: `matrix_multiply ub=0 pitch=256 rows=4 depth=4 columns=4 acc=0`.

Fields at their default may be left out; an image is written `image=h7w7c3r3s3p5q5`. `#` starts a comment.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

from arch.digits import whole_number
from arch.errors import InputError
from arch.near import hint
from sim.tpu.program import INSTRUCTIONS, Image, Instruction

_BY_NAME = {cls.NAME: cls for cls in INSTRUCTIONS}
_IMAGE_KEYS = {
    **{key: key for key in ("h", "w", "c", "r", "s", "p", "q")},
    "y": "stride_h",
    "x": "stride_w",
    "u": "pad_h",
    "l": "pad_w",
    "d": "dilation",
    "f": "first_channel",
    "n": "channels",
}
"""Letters of an image's text and their fields."""


def disassemble(instructions: Iterable[Instruction]) -> str:
    """The program as text, numbered in comments."""
    lines = [(_line(instruction), number) for number, instruction in enumerate(instructions)]
    width = min(100, max((len(text) for text, _ in lines), default=0))
    return "".join(f"{text:<{width}}  # {number}\n" for text, number in lines)


def assemble(text: str) -> list[Instruction]:
    """The instructions of a text; InputError names the line, the word and the nearest right one."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            found.append(_instruction(words, f"line {number}"))
    return found


def _line(instruction: Instruction) -> str:
    parts = [instruction.NAME]
    for f in dataclasses.fields(instruction):
        value = getattr(instruction, f.name)
        if value != f.default:
            parts.append(f"{f.name}={_image_text(value) if isinstance(value, Image) else value}")
    return " ".join(parts)


def _image_text(image: Image) -> str:
    return "".join(f"{letter}{getattr(image, name)}" for letter, name in _IMAGE_KEYS.items())


def _instruction(words: Sequence[str], where: str) -> Instruction:
    name, *pairs = words
    if name not in _BY_NAME:
        raise InputError(f"{where}: unknown instruction {name!r}{hint(name, _BY_NAME, '; nearest: {}')}")
    fields = {f.name: f for f in dataclasses.fields(_BY_NAME[name])}
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key not in fields:
            near = hint(key, fields, "; nearest: {}") if fields else "; it has none"
            raise InputError(f"{where}: {name} has no field {key!r}{near}")
        if not equals or not value:
            raise InputError(f"{where}: {pair!r} has no value, write {key}=VALUE")
        if key in values:
            raise InputError(f"{where}: {name}: field {key} is given twice")
        values[key] = _value(str(fields[key].type), value, f"{where}: {name} {key}={value}")
    missing = [key for key, f in fields.items() if f.default is dataclasses.MISSING and key not in values]
    if missing:
        raise InputError(f"{where}: {name}: {', '.join(missing)} missing")
    return _BY_NAME[name](**values)


def _value(kind: str, text: str, where: str) -> Any:
    if kind == "str":
        return text
    if kind == "Image":
        found = re.findall(r"([a-z])([0-9]{1,9})", text)
        if "".join(letter + number for letter, number in found) != text or any(k not in _IMAGE_KEYS for k, _ in found):
            raise InputError(f"{where}: write letters with numbers, as h7w7c3r3s3p5q5; letters: {''.join(_IMAGE_KEYS)}")
        return Image(**{_IMAGE_KEYS[letter]: int(number) for letter, number in found})
    number = whole_number(text)
    if number is None:
        raise InputError(f"{where}: must be a whole number of at least 0")
    return number
