"""Numbers of 8 and 16 bits as registers, shared memory and arrays hold them, to fp32 and back."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from arch.dtypes import FORMATS, round_to

Bits8: TypeAlias = NDArray[np.uint8]
Bits16: TypeAlias = NDArray[np.uint16]

NAMES = {"E4M3": "fp8", "E5M2": "fp8_e5m2"}
"""Formats of 8 bits by the word that an opcode has for them."""


def bf16(value: NDArray[np.floating]) -> Bits16:
    """Numbers as bf16, rounded to the nearest."""
    bits = value.astype(np.float32).view(np.uint32).astype(np.uint64)
    found: Bits16 = ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)
    return found


def of_bf16(bits: Bits16) -> NDArray[np.float32]:
    """Numbers of bf16."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def towards_zero(value: NDArray[np.float32], brain: bool) -> NDArray[np.float32]:
    """Numbers of fp32 as fp16 or bf16 have them that is not beyond."""
    if brain:
        return (value.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    near = value.astype(np.float16)
    beyond = np.abs(near.astype(np.float32)) > np.abs(value)
    return np.where(beyond, np.nextafter(near, np.float16(0)), near).astype(np.float32)


@cache
def _values(name: str) -> NDArray[np.float32]:
    """The numbers of a format of 8 bits by their bits (OCP 8-bit Floating Point Specification 1.0)."""
    fmt = FORMATS[name]
    fraction_bits = fmt.significand_bits - 1
    code = np.arange(128)
    exponent, fraction = code >> fraction_bits, (code & (1 << fraction_bits) - 1) / (1 << fraction_bits)
    normal = (1 + fraction) * 2.0 ** (exponent - 1 + fmt.min_exponent)
    found = np.where(exponent > 0, normal, fraction * 2.0**fmt.min_exponent)
    found[found > fmt.largest] = np.nan
    if name == "fp8_e5m2":
        found[0x7C] = np.inf
    return np.concatenate([found, -found]).astype(np.float32)


def of_fp8(bits: Bits8, name: str) -> NDArray[np.float32]:
    """Numbers of `fp8` (E4M3) or `fp8_e5m2`."""
    return _values(name)[bits]


def fp8(value: NDArray[Any], name: str) -> Bits8:
    """Numbers as `fp8` (E4M3) or `fp8_e5m2`, rounded to the nearest; what is too large becomes the largest."""
    rounded = round_to(value, name)
    known = _values(name)[:128]
    finite = known[np.isfinite(known)]
    found = np.searchsorted(finite, np.abs(np.nan_to_num(rounded))).astype(np.uint8)
    found = np.where(np.isnan(rounded), np.uint8(0x7F), found)
    return (found | np.signbit(rounded).astype(np.uint8) << np.uint8(7)).astype(np.uint8)


def numbers(data: Bits8, name: str) -> NDArray[np.float32]:
    """Numbers of a format from their bytes, of which the last axis has all of a row: fp16, bf16, fp8, fp8_e5m2, tf32,
    int8, uint8, int4, uint4, or single bits."""
    if name in NAMES.values():
        return of_fp8(data, name)
    if name in ("int8", "uint8"):
        return np.ascontiguousarray(data).view(name).astype(np.float32)
    if name in ("int4", "uint4"):
        nibbles = np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1).astype(np.float32)
        return np.where((nibbles > 7) & (name == "int4"), nibbles - 16, nibbles).astype(np.float32)
    if name == "bits":
        return np.unpackbits(data, axis=-1, bitorder="little").astype(np.float32)
    if name == "tf32":  # of fp32 the tensor core reads the upper 19 bits
        return (np.ascontiguousarray(data).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    halves = np.ascontiguousarray(data).view(np.uint16)
    return of_bf16(halves) if name == "bf16" else halves.view(np.float16).astype(np.float32)
