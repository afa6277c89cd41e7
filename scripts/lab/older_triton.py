#!/usr/bin/env python3
"""Compiles a Triton kernel for sm_90 with Triton 3.0 or 3.1, whose interface later versions have changed.

    pip install --no-deps --target DIR triton==3.0.0
    PYTHONPATH=DIR scripts/lab/older_triton.py FILE.py:KERNEL OUT.cubin WARPS STAGES q='*fp16' scale=fp32 n=64

A parameter is a pointer (`*fp16`), a number's type (`fp32`) or a whole number, which is specialised as Triton does. It
prints what a launch of the cubin has to say, as JSON: name, bytes of shared memory, parameters that the code kept.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import AttrsDescriptor

ALIGNED = 16


def main(where: str, out: str, warps: str, stages: str, *pairs: str) -> None:
    """Compiles one kernel."""
    path, _, function = where.rpartition(":")
    spec = importlib.util.spec_from_file_location("kernels", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = module
    spec.loader.exec_module(module)
    kernel = getattr(module, function)
    given = dict(pair.split("=", 1) for pair in pairs)
    signature: dict[int, str] = {}
    constants: dict[int, int] = {}
    multiples: list[int] = []
    for i, parameter in enumerate(kernel.params):
        value = given[parameter.name]
        number = int(value) if value.lstrip("-").isdigit() else None
        if number is not None and (parameter.is_constexpr or number == 1):
            constants[i] = number
        if parameter.is_constexpr:
            continue
        signature[i] = value if number is None else "i32"
        if value.startswith("*") or (number is not None and number % ALIGNED == 0):
            multiples.append(i)
    ones = tuple(i for i in constants if i in signature)
    attributes = AttrsDescriptor(divisible_by_16=tuple(multiples), equal_to_1=ones)
    options = {"num_warps": int(warps), "num_stages": int(stages)}
    source = ASTSource(kernel, signature=signature, constants=constants, attrs=attributes)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    Path(out).write_bytes(made.asm["cubin"])
    kept = [kernel.params[i].name for i in signature if i not in ones]
    shared = made.metadata.shared
    print(json.dumps({"name": made.metadata.name, "shared": shared, "kept": kept, "version": triton.__version__}))


if __name__ == "__main__":
    main(*sys.argv[1:])
