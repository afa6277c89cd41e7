#!/usr/bin/env python3
"""Asks cuBLAS on a Hopper GPU which kernel it takes for products, for workloads/silicon/lab/cublas_choices.csv.

    scripts/lab/ask_cublas.py [--library libcublasLt.so.13] [--shapes FILE] [--sms N] -o answers.csv

Nothing is run: `cublasLtMatmulAlgoGetHeuristic` says what `cublasGemmEx` launches (the profiler named the same kernel
for each of 1,771 products). Each line of FILE is a number format and a product, `bf16 m=64 n=4096 k=4096 tb=T`; without
it the products of the table are asked for again. `--sms` has the library believe in a chip with so many SMs: the
number that the driver states is replaced (LD_PRELOAD; needs gcc). The workspace is PyTorch's, 32 MiB.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import ctypes.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.lab.choices import CHOICES_CSV, COLUMNS

NVJET = 66
"""Number of the library's family of kernels by wgmma that read both operands by themselves."""
WORKSPACE_BYTES = 32 << 20
FORMATS = {"bf16": (14, 14), "fp16": (2, 2), "fp8": (28, 14)}
"""cudaDataType of the operands and of the result."""
COMPUTE_32F, R_32F = 68, 0
TRANS_A, TRANS_B, MAX_WORKSPACE, BATCH_COUNT, BATCH_STRIDE = 3, 4, 1, 5, 6
ID, TILE, SPLIT, CUSTOM, CLUSTER = 0, 1, 2, 5, 8
FIRST_IS_N, ORDER_IS_M, SHARED = 1, 2, 4
"""Bits of the custom option of an answer."""

INTERPOSER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
enum { MULTIPROCESSOR_COUNT = 16 };
static int (*attribute)(int *, int, int);
static int (*address)(const char *, void **, int, unsigned long long, void *);
static int fewer(int *value, int which, int device) {
  int status = attribute(value, which, device);
  if (which == MULTIPROCESSOR_COUNT) *value = atoi(getenv("ASKED_SMS"));
  return status;
}
static int find(const char *name, void **entry, int version, unsigned long long flags, void *status) {
  int result = address(name, entry, version, flags, status);
  if (entry && *entry && !strcmp(name, "cuDeviceGetAttribute")) { attribute = *entry; *entry = fewer; }
  if (entry && *entry && !strncmp(name, "cuGetProcAddress", 16)) { address = *entry; *entry = find; }
  return result;
}
void *dlsym(void *handle, const char *name) {
  static void *(*real)(void *, const char *);
  if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  void *entry = real(handle, name);
  if (entry && name && !strcmp(name, "cuGetProcAddress_v2")) { address = entry; return find; }
  return entry;
}
"""


class _Answer(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


class Library:
    """cublasLt, as far as it is asked here. Raises OSError without the library, RuntimeError without a GPU."""

    def __init__(self, path: str, header: Path) -> None:
        self.lib = ctypes.CDLL(path)
        text = header.read_text(encoding="utf-8")
        self.tiles = _enumerated(text, r"CUBLASLT_MATMUL_TILE_(\d+)x(\d+) = (\d+)")
        self.clusters = _enumerated(text, r"CUBLASLT_CLUSTER_SHAPE_(\d+)x(\d+)x1 = (\d+)")
        self.handle, self.preference = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self.handle))
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(self.preference))
        self._set(
            "cublasLtMatmulPreferenceSetAttribute", self.preference, MAX_WORKSPACE, ctypes.c_size_t(WORKSPACE_BYTES)
        )

    def ask(self, dtype: str, keys: dict[str, str]) -> dict[str, Any] | None:
        """The first answer for a product; None where it is no kernel of nvjet."""
        m, n, k, batch = (int(keys.get(key, "1")) for key in ("m", "n", "k", "batch"))
        operands, result = FORMATS[dtype]
        product = ctypes.c_void_p()
        self._call("cublasLtMatmulDescCreate", ctypes.byref(product), COMPUTE_32F, R_32F)
        # Rows of memory are the library's columns: it multiplies B^T by A^T.
        flipped = {TRANS_A: keys.get("tb") == "T", TRANS_B: keys.get("ta") == "T"}
        for which, value in flipped.items():
            self._set("cublasLtMatmulDescSetAttribute", product, which, ctypes.c_int32(value))
        shapes = ((k, n) if flipped[TRANS_A] else (n, k), (m, k) if flipped[TRANS_B] else (k, m), (n, m), (n, m))
        formats = (operands, operands, result, result)
        layouts = [self._layout(kind, *shape, batch) for kind, shape in zip(formats, shapes, strict=True)]
        found, count = _Answer(), ctypes.c_int(0)
        status = self.lib.cublasLtMatmulAlgoGetHeuristic(
            self.handle, product, *layouts, self.preference, 1, ctypes.byref(found), ctypes.byref(count)
        )
        for layout in layouts:
            self._call("cublasLtMatrixLayoutDestroy", layout)
        self._call("cublasLtMatmulDescDestroy", product)
        if status or not count.value or self._of(found, ID) != NVJET:
            return None
        custom, tile = self._of(found, CUSTOM), self.tiles[self._of(found, TILE)]
        cluster = self.clusters[self._of(found, CLUSTER)]
        return {
            "tile_n": tile[0], "tile_m": tile[1], "first": "n" if custom & FIRST_IS_N else "m",
            "shared": int(bool(custom & SHARED)), "cluster_n": cluster[0], "cluster_m": cluster[1],
            "order": "m" if custom & ORDER_IS_M else "n", "split": self._of(found, SPLIT),
        }  # fmt: skip

    def _of(self, answer: _Answer, which: int) -> int:
        width = ctypes.c_uint16 if which == CLUSTER else ctypes.c_uint32
        value = width(0)
        self._call(
            "cublasLtMatmulAlgoConfigGetAttribute", ctypes.byref(answer), which, ctypes.byref(value),
            ctypes.c_size_t(ctypes.sizeof(value)), ctypes.byref(ctypes.c_size_t(0)),
        )  # fmt: skip
        return int(value.value)

    def _layout(self, kind: int, rows: int, columns: int, batch: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        size = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), kind, *size)
        if batch > 1:
            self._set("cublasLtMatrixLayoutSetAttribute", layout, BATCH_COUNT, ctypes.c_int32(batch))
            self._set("cublasLtMatrixLayoutSetAttribute", layout, BATCH_STRIDE, ctypes.c_int64(rows * columns))
        return layout

    def _set(self, function: str, of: ctypes.c_void_p, which: int, value: Any) -> None:
        self._call(function, of, which, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def _call(self, function: str, *arguments: Any) -> None:
        if status := getattr(self.lib, function)(*arguments):
            raise RuntimeError(f"{function}: status {status}; is there a GPU?")


def _enumerated(header: str, pattern: str) -> dict[int, tuple[int, int]]:
    return {int(number): (int(x), int(y)) for x, y, number in re.findall(pattern, header)}


def _asked(path: Path | None) -> Iterator[tuple[str, str]]:
    """Number formats and shapes."""
    if path is not None:
        for line in path.read_text(encoding="utf-8").splitlines():
            dtype, _, shape = line.strip().partition(" ")
            if dtype not in FORMATS:
                raise SystemExit(f"{path}: {line}: the format must be one of {', '.join(FORMATS)}")
            yield dtype, shape
        return
    with CHOICES_CSV.open(encoding="utf-8", newline="") as file:
        yield from dict.fromkeys((row["dtype"], row["shape"]) for row in csv.DictReader(file))


def _with_sms(sms: int) -> int:
    """This script again, in a process whose driver states so many SMs."""
    with tempfile.TemporaryDirectory() as folder:
        source, shared = Path(folder, "sms.c"), Path(folder, "sms.so")
        source.write_text(INTERPOSER, encoding="utf-8")
        subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", str(shared), str(source), "-ldl"], check=True)
        environment = {**os.environ, "LD_PRELOAD": str(shared), "ASKED_SMS": str(sms)}
        return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode


def main() -> int:
    """Asks, and writes the answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=ctypes.util.find_library("cublasLt") or "libcublasLt.so.13")
    parser.add_argument("--header", type=Path, default=Path("/usr/local/cuda/include/cublasLt.h"))
    parser.add_argument("--shapes", type=Path)
    parser.add_argument("--sms", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.out.exists():
        raise SystemExit(f"{arguments.out}: exists, choose another name")
    if arguments.sms and "ASKED_SMS" not in os.environ:
        return _with_sms(arguments.sms)
    asked = list(_asked(arguments.shapes))
    library = Library(arguments.library, arguments.header)
    with arguments.out.open("x", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for dtype, shape in asked:
            answer = library.ask(dtype, dict(pair.split("=") for pair in shape.split()))
            if answer is not None:
                writer.writerow({"sms": arguments.sms or 132, "dtype": dtype, "shape": shape, **answer})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
