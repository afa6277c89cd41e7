#!/usr/bin/env python3
"""Measures wgmma beside other users of shared memory on a Hopper GPU and writes rows of the memory probes' schema.

    python probe_beside.py --out beside.csv
    python probe_beside.py --source               # only prints the CUDA source, which needs no GPU

Needs CuPy and nvcc. One or two warpgroups of a CTA issue wgmma m64nNk16 in bf16 in groups of four, both operands in
shared memory (`ss`) or the first one in registers (`rs`). Beside them runs nothing, one thread with bulk loads of
24 KiB from the L2, or one that polls an mbarrier; or a warpgroup of its own, or two (`workers=2`), that copy by
cp.async or do arithmetic: one instruction in sixteen independent chains or in one, or a block of attention's softmax
(64 scores a thread: maxima, weights, sums, conversion, 64 outputs rescaled). Arithmetic is timed without wgmma as
well (`alone`). Cycles are by clock64 of the warpgroups, on one SM and on all. It changes no setting of the card.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLUMNS = (
    *("source_id", "device", "op", "dtype", "shape", "impl", "metric", "value", "unit", "method_notes", "url"),
    *("date", "driver", "cuda"),
)
"""Columns of the memory probes, and what a row was measured with."""

WIDTHS = (8, 32, 64, 88, 96, 128, 192, 256)
"""n of wgmma."""

ARITHMETIC = {
    "fmul": "mul.f32 %0, %0, %2;",
    "fadd": "add.f32 %0, %0, %2;",
    "ffma_1": "fma.rn.f32 %0, %0, %2, %2;",
    "ffma_2": "fma.rn.f32 %0, %0, %2, %3;",
    "ffma_3": "fma.rn.f32 %0, %1, %3, %0;",
    "fmnmx": "max.f32 %0, %0, %3;",
    "ex2": "ex2.approx.ftz.f32 %0, %0;",
    "pack": "{.reg .b32 p;\n\tcvt.rn.bf16x2.f32 p, %0, %3;\n\tmov.b32 %0, p;}",
    "shfl": "{.reg .b32 p;\n\tmov.b32 p, %0;\n\tshfl.sync.bfly.b32 p, p, 1, 0x1f, 0xffffffff;\n\tmov.b32 %0, p;}",
}
"""One instruction each. ffma_1 to ffma_3: how many registers it reads that the one before has not read."""
CHAINS = ("fmul", "fadd", "ffma_1", "fmnmx", "ex2", "shfl")
"""Also in one chain, each after the one before."""
BESIDE = (
    *("nothing", "bulk loads", "polls", "copies", "softmax"),
    *ARITHMETIC,
    *(f"{name}_chain" for name in CHAINS),
)
"""Number `mode` of the kernels. From `copies` on: all threads of a warpgroup."""
WORK = {"copies": 2048, "softmax": 1, **dict.fromkeys(BESIDE[5:], 512)}
"""Of one turn: bytes of the warpgroup, blocks, instructions of a warp."""
LEAST = 100
"""Turns of what is timed alone."""
GROUPS = 512
"""Groups of four wgmma that a warpgroup issues."""

SHARED_BYTES = 190_000

HEAD = r"""
typedef unsigned long long u64;
typedef unsigned int u32;
#define DEV static __device__ __forceinline__
extern __shared__ __align__(1024) unsigned char shm[];
DEV u64 clk() { u64 c; asm volatile("mov.u64 %0, %%clock64;" : "=l"(c)::"memory"); return c; }
DEV u32 smem_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// A K-major tile of zeros, swizzled by 128 bytes.
DEV u64 wg_desc(u32 at) { return (u64)((at & 0x3ffffu) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62); }
DEV void mbar_init(u32 bar) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory"); }
DEV void mbar_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEV u32 mbar_try(u32 bar, u32 parity) {
  u32 ok;
  asm volatile("{.reg .pred q;\n\tmbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2;\n\tselp.u32 %0, 1, 0, q;}"
               : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
  return ok;
}
DEV void mbar_wait(u32 bar, u32 parity) {
  for (int i = 0; i < 4000000; i++)
    if (mbar_try(bar, parity)) return;
}
DEV void copy(u32 dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}
#define EACH _Pragma("unroll") for (int i = 0; i < 16; i++)
#define TURNS(text) \
  for (int n = 0; done < need || n < least; n++, moved += 512) { \
    _Pragma("unroll") for (int j = 0; j < 32; j++) \
      EACH asm volatile(text : "+f"(d[i]), "+f"(e[i]) : "f"(x), "f"(f[i])); \
  } \
  break;
#define CHAIN(text) \
  for (int n = 0; done < need || n < least; n++, moved += 512) { \
    _Pragma("unroll") for (int j = 0; j < 512; j++) asm volatile(text : "+f"(d[0]), "+f"(e[0]) : "f"(x), "f"(f[0])); \
  } \
  break;
DEV void softmax(float* s, float* o, float& top, float& total, float scale) {
  float high = top;
#pragma unroll
  for (int i = 0; i < 64; i++) high = fmaxf(high, s[i]);
  high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
  high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
  float factor, minus = -high * scale;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(factor) : "f"(top * scale + minus));
  top = high;
  total *= factor;
#pragma unroll
  for (int i = 0; i < 64; i++) {
    float w;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(w) : "f"(s[i] * scale + minus));
    s[i] = w;
  }
#pragma unroll
  for (int i = 0; i < 64; i++) total += s[i];
#pragma unroll
  for (int i = 0; i < 64; i += 2) {
    u32 pair;
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(s[i + 1]), "f"(s[i]));
    s[i] = __uint_as_float(pair);
  }
#pragma unroll
  for (int i = 0; i < 64; i++) o[i] *= factor;
}
DEV void bulk_load(u32 dst, const void* src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}
"""

KERNEL = r"""
extern "C" __global__ void __launch_bounds__(THREADS, 1) beside_N(
    const char* p, int mode, int groups, int least, int workers, u32* sink, u64* t) {
  const int need = groups ? blockDim.x / 128 - workers : 0;
  __shared__ u64 bars[4];
  __shared__ volatile int done;
  __shared__ u64 moved_by[4];
  for (u32 i = threadIdx.x; i < 16384; i += blockDim.x) ((u32*)shm)[i] = 0;
  if (threadIdx.x == 0) {
    done = 0;
    for (int i = 0; i < 4; i++) mbar_init(smem_of(bars + i));
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  u32 group = threadIdx.x / 128, room = smem_of(shm) + 65536;
  if (group < workers) {
    const u32 deep = 4, piece = 24576;
    u64 a = clk(), moved = 0;
    u32 sum = 0;
    if (mode == 1 && threadIdx.x == 0) {
      const char* src = p + (u64)blockIdx.x * 131072;
      u32 i = 0;
      for (; done < need; i++) {
        u32 bar = smem_of(bars + i % deep);
        if (i >= deep) {
          mbar_wait(bar, ((i / deep) & 1) ^ 1);
          moved += piece;
        }
        mbar_expect(bar, piece);
        bulk_load(room + (i % deep) * piece, src + (i % deep) * piece, piece, bar);
      }
      for (u32 j = i > deep ? i - deep : 0; j < i; j++) mbar_wait(smem_of(bars + j % deep), (j / deep) & 1);
    }
    if (mode == 2 && threadIdx.x == 0)
      while (done < need) sum += mbar_try(smem_of(bars), 0);
    if (mode == 3) {
      const char* src = p + (u64)blockIdx.x * 131072 + threadIdx.x % 128 * 16;
      for (int i = 0; done < need || i < least; i++, moved += 512) {
        copy(room + threadIdx.x % 128 * 16 + (i % 16) * 2048, src + (i % 64) * 2048);
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 14;" ::: "memory");
      }
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    if (mode > 4) {
      float d[16], e[16], f[16], x = threadIdx.x;
      EACH { d[i] = i; e[i] = i + x; f[i] = i - x; }
      switch (mode) {
        WORK
      }
      EACH sum += __float_as_uint(d[i] + e[i]);
    }
#if THREADS == 384
    if (mode == 4) {
      float s[64], o[64], top = 0, total = 0;
#pragma unroll
      for (int i = 0; i < 64; i++) s[i] = o[i] = i * 0.01f + threadIdx.x;
      for (int i = 0; done < need || i < least; i++, moved += 1) {
        softmax(s, o, top, total, 0.5f);
#pragma unroll
        for (int j = 0; j < 64; j++) asm volatile("" : "+f"(s[j]));
      }
#pragma unroll
      for (int i = 0; i < 64; i++) sum += __float_as_uint(s[i] + o[i] + total);
    }
#endif
    if (sum == 12345) *sink = sum;
    if (group == 0 && threadIdx.x % 32 == 0) moved_by[threadIdx.x / 32] = moved;
    asm volatile("bar.sync 1, %0;" ::"r"(128 * workers) : "memory");
    if (threadIdx.x == 0) {
      t[blockIdx.x * 4] = moved_by[0] + moved_by[1] + moved_by[2] + moved_by[3];
      t[blockIdx.x * 4 + 1] = clk() - a;
    }
  } else {
    float d[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) d[i] = 0;
    u32 first[4] = {0, 0, 0, 0};
    (void)first;
    u64 da = wg_desc(smem_of(shm) + (group - workers) * 8192), db = wg_desc(smem_of(shm) + 16384);
    u64 a = clk();
    for (int g = 0; g < groups; g++) {
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      FOUR
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    u64 b = clk();
    if (threadIdx.x % 128 == 0) {
      t[blockIdx.x * 4 + 2 + group - workers] = b - a;
      atomicAdd((int*)&done, 1);
    }
    float s = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) s += d[i];
    if (s == 12345.f) *sink = 1;
  }
}
"""


KINDS = (*((n, operands, 384) for n in WIDTHS for operands in ("ss", "rs")), (128, "ss", 512), (128, "rs", 512))
"""n of wgmma, where its first operand is, threads of the kernel."""


def kernel_source(n: int, operands: str, threads: int = 384) -> str:
    """The kernel of one width of wgmma. operands: `rs`, the first one in registers, or `ss`. threads: 512, for two
    warpgroups beside those with wgmma, leave no registers for `softmax`."""
    count = n // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    outs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    if operands == "ss":
        words, ways = f"%{count}", "1, 1, 1, 0, 0"
    else:
        words, ways = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}", "1, 1, 1, 0"
    last = count + (1 if operands == "ss" else 4)
    steps = (
        f'asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{registers}}}, {words}, %{last}, '
        f'{ways};" : {outs} : '
        + (f'"l"(da + {2 * k})' if operands == "ss" else ", ".join(f'"r"(first[{i}])' for i in range(4)))
        + f', "l"(db + {2 * k}) : "memory");'
        for k in range(4)
    )
    work = [f"case {5 + i}: TURNS({json.dumps(text)})" for i, text in enumerate(ARITHMETIC.values())]
    work += [f"case {5 + len(work) + i}: CHAIN({json.dumps(ARITHMETIC[name])})" for i, name in enumerate(CHAINS)]
    text = (
        KERNEL.replace("WORK", "\n        ".join(work))
        .replace("FOUR", "\n      ".join(steps))
        .replace("COUNT", str(count))
    )
    return f"#define THREADS {threads}\n" + text.replace("_N(", f"_{n}_{operands}_{threads}(") + "#undef THREADS\n"


def source_text() -> str:
    """All kernels."""
    return HEAD + "".join(kernel_source(*kind) for kind in KINDS)


def measurements(cp: Any, sms: int) -> list[tuple[str, str, float, str]]:
    """Shape, metric, value and unit of every row."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "beside.cu"), Path(folder, "beside.cubin")
        source.write_text(source_text(), encoding="utf-8")
        options = ("-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-o", str(cubin), str(source))
        subprocess.run(["nvcc", *options], check=True)
        module = cp.RawModule(path=str(cubin))
        # A module is loaded with its first function.
        kernels = {kind: module.get_function("beside_{}_{}_{}".format(*kind)) for kind in KINDS}
    buffer, sink = cp.zeros(64 << 20, dtype=cp.uint8), cp.zeros(1, dtype=cp.uint32)
    found: list[tuple[str, str, float, str]] = []

    def run(kind: tuple[int, str, int], mode: int, ctas: int, beside: int, groups: int, workers: int = 1) -> Any:
        kernel = kernels[kind]
        kernel.max_dynamic_shared_size_bytes = SHARED_BYTES
        times = cp.zeros(4 * ctas, dtype=cp.uint64)
        numbers = (mode, groups, 0 if groups else LEAST, workers)
        arguments = (buffer, *map(cp.int32, numbers), sink, times)
        for _ in range(3):
            kernel((ctas,), (128 * (beside + workers),), arguments, shared_mem=SHARED_BYTES)
        return times.get().reshape(-1, 4).astype(float)

    def rate(rows: Any, beside: str) -> tuple[str, float, str]:
        if beside not in WORK or beside == "copies":
            return "moved_beside", float((rows[:, 0] / rows[:, 1]).mean()), "B/clk"
        turns = rows[:, 0] / 4 / WORK[beside]  # each of the four warps has counted
        return "time_beside", float((rows[:, 1] / turns / WORK[beside]).mean()), "cycles"

    for mode, beside in enumerate(BESIDE):
        alone = (128, "ss", 384), (128, "ss", 512)
        for workers, kind in enumerate(alone, 1):
            if beside in WORK and (workers == 1 or beside != "softmax"):
                for ctas in (1, sms):
                    rows = run(kind, mode, ctas, 1, 0, workers)
                    shape = f"beside={beside} alone ctas={ctas}" + " workers=2" * (workers - 1)
                    found.append((shape, *rate(rows, beside)))
        for kind in KINDS:
            n, operands, threads = kind
            workers = 2 if threads == 512 else 1
            for groups in (2,) if mode < 3 else (1, 2):
                if (mode < 3 and (operands == "rs" or workers == 2)) or (mode >= 3 and n not in (64, 128)):
                    continue
                if workers == 2 and beside in ("softmax", "copies"):
                    continue
                for ctas in (1, sms):
                    rows = run(kind, mode, ctas, groups, GROUPS, workers)
                    cycles = float(rows[:, 2 : 2 + groups].max(axis=1).mean()) / (GROUPS * 4 * groups)
                    shape = f"m64n{n}k16 {operands} beside={beside.replace(' ', '_')} ctas={ctas}"
                    shape += " warpgroups=1" * (groups == 1) + " workers=2" * (workers == 2)
                    read = ((64 if operands == "ss" else 0) + n) * 32
                    found += [
                        (shape, "interval", cycles, "cycles"),
                        (shape, "operand_reads", read / cycles, "B/clk"),
                        (shape, *rate(rows, beside)),
                    ]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 2 without CuPy or a Hopper GPU, or where the file exists."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="FILE", default="beside.csv", help="CSV to write; must not exist")
    parser.add_argument("--source", action="store_true", help="print the CUDA source and end")
    options = parser.parse_args(arguments)
    if options.source:
        print(source_text())
        return 0
    try:
        import cupy as cp  # type: ignore[import-not-found, unused-ignore]

        device = cp.cuda.runtime.getDeviceProperties(0)
    except Exception as error:  # CuPy has no common class for a missing driver or device
        print(f"probe_beside: CuPy and a GPU are needed: {error}", file=sys.stderr)
        return 2
    if (device["major"], device["minor"]) != (9, 0):
        print(
            f"probe_beside: needs compute capability 9.0, this is {device['major']}.{device['minor']}", file=sys.stderr
        )
        return 2
    if not shutil.which("nvcc"):
        print("probe_beside: nvcc is needed, of CUDA 12 or later", file=sys.stderr)
        return 2
    if Path(options.out).exists():
        print(f"probe_beside: --out {options.out}: the file exists", file=sys.stderr)
        return 2
    rows = measurements(cp, device["multiProcessorCount"])
    fixed = {
        "source_id": "probe_beside", "device": device["name"].decode(), "op": "wgmma_beside", "dtype": "bf16",
        "impl": "CUDA kernel", "method_notes": f"clock64; {4 * GROUPS} wgmma a warpgroup, of two if not said",
        "date": time.strftime("%Y-%m-%d"), "driver": cp.cuda.runtime.driverGetVersion(),
        "cuda": cp.cuda.runtime.runtimeGetVersion(),
    }  # fmt: skip
    with open(options.out, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        for shape, metric, value, unit in rows:
            writer.writerow({**fixed, "shape": shape, "metric": metric, "value": f"{value:.5g}", "unit": unit})
    print(f"{len(rows)} rows in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
