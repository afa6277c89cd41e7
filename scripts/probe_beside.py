#!/usr/bin/env python3
"""Measures wgmma beside other users of shared memory on a Hopper GPU and writes rows of the memory probes' schema.

    python probe_beside.py --out beside.csv
    python probe_beside.py --source               # only prints the CUDA source, which needs no GPU

Needs CuPy and nvcc. Two warpgroups of a CTA issue wgmma m64nNk16 in bf16, both operands in shared memory, in groups
of four. Beside them runs nothing, one thread with bulk loads of 24 KiB from the L2, or one that polls an mbarrier.
Cycles are by clock64 of the warpgroups, on one SM and on all. It changes no setting of the card.
"""

from __future__ import annotations

import argparse
import csv
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

BESIDE = ("nothing", "bulk loads", "polls")
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
DEV void bulk_load(u32 dst, const void* src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}
"""

KERNEL = r"""
extern "C" __global__ void __launch_bounds__(384, 1) beside_N(const char* p, int mode, int groups, u32* sink, u64* t) {
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
  if (group == 0) {
    const u32 deep = 4, piece = 24576;
    u64 a = clk(), moved = 0;
    u32 sum = 0;
    if (mode == 1 && threadIdx.x == 0) {
      const char* src = p + (u64)blockIdx.x * 131072;
      u32 i = 0;
      for (; done < 2; i++) {
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
      while (done < 2) sum += mbar_try(smem_of(bars), 0);
    if (sum == 12345) *sink = sum;
    if (threadIdx.x % 32 == 0) moved_by[threadIdx.x / 32] = moved;
    asm volatile("bar.sync 1, 128;" ::: "memory");
    if (threadIdx.x == 0) {
      t[blockIdx.x * 4] = moved_by[0] + moved_by[1] + moved_by[2] + moved_by[3];
      t[blockIdx.x * 4 + 1] = clk() - a;
    }
  } else {
    float d[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) d[i] = 0;
    u64 da = wg_desc(smem_of(shm) + (group - 1) * 8192), db = wg_desc(smem_of(shm) + 16384);
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
      t[blockIdx.x * 4 + 1 + group] = b - a;
      atomicAdd((int*)&done, 1);
    }
    float s = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) s += d[i];
    if (s == 12345.f) *sink = 1;
  }
}
"""


def kernel_source(n: int) -> str:
    """The kernel of one width of wgmma."""
    count = n // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    outs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    steps = (
        f'asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{registers}}}, %{count}, %{count + 1}, '
        f'1, 1, 1, 0, 0;" : {outs} : "l"(da + {2 * k}), "l"(db + {2 * k}) : "memory");'
        for k in range(4)
    )
    return KERNEL.replace("FOUR", "\n      ".join(steps)).replace("COUNT", str(count)).replace("_N(", f"_{n}(")


def source_text() -> str:
    """All kernels."""
    return HEAD + "".join(map(kernel_source, WIDTHS))


def measurements(cp: Any, sms: int) -> list[tuple[str, str, float, str]]:
    """Shape, metric, value and unit of every row."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "beside.cu"), Path(folder, "beside.cubin")
        source.write_text(source_text(), encoding="utf-8")
        options = ("-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-o", str(cubin), str(source))
        subprocess.run(["nvcc", *options], check=True)
        module = cp.RawModule(path=str(cubin))
        kernels = {n: module.get_function(f"beside_{n}") for n in WIDTHS}  # a module is loaded with its first function
    buffer, sink = cp.zeros(64 << 20, dtype=cp.uint8), cp.zeros(1, dtype=cp.uint32)
    found = []
    for n in WIDTHS:
        kernel = kernels[n]
        kernel.max_dynamic_shared_size_bytes = SHARED_BYTES
        for mode, beside in enumerate(BESIDE):
            for ctas in (1, sms):
                times = cp.zeros(4 * ctas, dtype=cp.uint64)
                arguments = (buffer, cp.int32(mode), cp.int32(GROUPS), sink, times)
                for _ in range(3):
                    kernel((ctas,), (384,), arguments, shared_mem=SHARED_BYTES)
                rows = times.get().reshape(-1, 4).astype(float)
                cycles = float(rows[:, 2:].max(axis=1).mean()) / (GROUPS * 4 * 2)
                shape = f"m64n{n}k16 ss beside={beside.replace(' ', '_')} ctas={ctas}"
                found += [
                    (shape, "interval", cycles, "cycles"),
                    (shape, "operand_reads", (64 + n) * 32 / cycles, "B/clk"),
                    (shape, "moved_beside", float((rows[:, 0] / rows[:, 1]).mean()), "B/clk"),
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
        "impl": "CUDA kernel", "method_notes": f"clock64; {4 * GROUPS} wgmma a warpgroup, two warpgroups",
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
