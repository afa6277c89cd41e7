"""A fragment of a Monarch FFT: product, twiddle factors, transpose, product; fused not at all, partly, or wholly.

X [rows, 128] times F0 [128, 512], times twiddle factors element by element, transposed, and contracted with F1 [512,
128]. Rows and extents are those at which the published operational intensities of the three forms come out.
"""

from __future__ import annotations

from typing import Any

from sim.rdu.program import Call, Counter, Out, Output, Program, Section, Tensor, Value

FORMS = ("none", "partial", "full")
ROWS, NARROW, WIDE = 2048, 128, 512
TILE = 256
DTYPE = "bf16"
FLOPS = ROWS * (2 * NARROW * WIDE + WIDE + 2 * WIDE * NARROW)

_X = Tensor("x", (ROWS, NARROW), DTYPE)
_F0 = Tensor("f0", (NARROW, WIDE), DTYPE)
_F1 = Tensor("f1", (WIDE, NARROW), DTYPE)
_TWIDDLE = Tensor("twiddle", (WIDE,), DTYPE)
_Y = Tensor("y", (ROWS, NARROW), DTYPE, "output")
_PRODUCT, _TWISTED = (Tensor(name, (ROWS, WIDE), DTYPE, "scratch") for name in ("product", "twisted"))
_TURNED = Tensor("turned", (WIDE, ROWS), DTYPE, "scratch")


def monarch(form: str) -> Program:
    """The program of a form."""
    fused = {
        "none": (("gemm0",), ("twiddle",), ("transpose",), ("gemm1",)),
        "partial": (("gemm0", "twiddle", "transpose"), ("gemm1",)),
        "full": (("gemm0", "twiddle", "transpose", "gemm1"),),
    }[form]
    return Program(f"monarch {form}", tuple(Call(_section(names)) for names in fused), form)


def _section(names: tuple[str, ...]) -> Section:
    """The steps of one section; what comes from the section before, and goes to the next, passes through memory."""
    section, i = Section("+".join(names)), Counter("tile", ROWS // TILE)
    sources = {"gemm0": _X, "twiddle": _PRODUCT, "transpose": _TWISTED, "gemm1": _TURNED}
    targets = {"gemm0": _PRODUCT, "twiddle": _TWISTED, "transpose": _TURNED, "gemm1": _Y}
    turned = names[0] == "gemm1"
    source, at = sources[names[0]], i * TILE
    tile = (source.shape[0], TILE) if turned else (TILE, source.shape[1])
    value: Output = section.load("load", source, (0, at) if turned else (at, 0), tile, (i,))
    for name in names:
        value = _step(section, name, value, i)
    if names[-1] == "transpose":
        section.store("store", _TURNED, (0, at), value.read(transposed=True), (i,))
    else:
        section.store("store", targets[names[-1]], (at, 0), value, (i,))
    return section


def _step(section: Section, name: str, x: Output, i: Counter) -> Output:
    """One step on a tile."""
    inputs: dict[str, Any] = {"x": x}
    match name:
        case "gemm0":
            inputs["w"] = section.load("load_f0", _F0, (0, 0), _F0.shape, ()).read(1)
            body, width = _product, WIDE
        case "gemm1":
            # The transposed tile is read along its columns.
            inputs["x"] = x.read(transposed=x.out.shape[0] == WIDE)
            inputs["w"] = section.load("load_f1", _F1, (0, 0), _F1.shape, ()).read(1)
            body, width = _product, NARROW
        case "twiddle":
            inputs["w"] = section.load("load_twiddle", _TWIDDLE, (0,), _TWIDDLE.shape, (), units=1).read(1)
            body, width = _twist, WIDE
        case _:
            return x  # addresses of the buffer behind it
    made: Output = section.stage(name, (i,), inputs, body, Out((TILE, width), DTYPE, (i,)))
    return made


def _product(x: Value, w: Value) -> Value:
    return x @ w


def _twist(x: Value, w: Value) -> Value:
    return x * w
