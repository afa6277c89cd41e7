"""Options of `tilewave run` for compiled kernels, `--triton` and `--cubin`, and the workload that they describe."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from arch.errors import InputError

if TYPE_CHECKING:
    from workloads.written import ProgramFile

_TRITON = ("arg", "const", "num_warps", "num_stages", "num_ctas", "autotune")
_CUBIN = ("kernel", "block", "param", "shared", "cluster")
_BOTH = ("grid", "reference")


def add_compiled(parser: argparse.ArgumentParser) -> None:
    """Options of compiled kernels, in place of an operator."""
    group = parser.add_argument_group("compiled kernels, in place of OP")
    add: Callable[..., Any] = group.add_argument
    add("--triton", metavar="FILE:KERNEL", help="compile and run a Triton kernel: executes the file")
    add("--cubin", metavar="FILE", help="run a kernel of a cubin")
    add("--grid", metavar="X,Y,Z", help="CTAs of the launch; of Triton also cdiv(M,BM)*cdiv(N,BN)")
    add(
        "--arg", action="append", default=[], metavar="N=V",
        help="an argument: a=fp16[2304,2304], m=2304, eps=1e-5; @128,64 behind an array: a tensor map; :FILE.npy: what "
        "it holds",
    )  # fmt: skip
    add("--const", action="append", default=[], metavar="N=V", help="a tl.constexpr of a Triton kernel")
    add("--num-warps", type=int, metavar="N", help="warps of a Triton kernel's CTA (4)")
    add("--num-stages", type=int, metavar="N", help="stages of a Triton kernel's pipelines (3)")
    add("--num-ctas", type=int, metavar="N", help="CTAs of a Triton kernel's cluster (1)")
    add("--reference", metavar="FILE:FUNC", help="what --check compares with: arrays by name from arrays by name")
    add("--autotune", action="store_true", help="run every configuration of the @triton.autotune list, and rank them")
    add("--kernel", metavar="NAME", help="which kernel of the cubin")
    add("--block", metavar="X,Y,Z", help="threads of a CTA of a cubin's kernel")
    add("--param", action="append", default=[], metavar="N=V", help="a parameter of a cubin's kernel, in their order")
    add("--cluster", metavar="X,Y,Z", help="CTAs of a cluster of a cubin's kernel, where the cubin does not say it")
    add("--shared", type=int, metavar="BYTES", help="dynamic shared memory of a CTA of a cubin's kernel")


def compiled_workload(options: argparse.Namespace) -> ProgramFile | None:
    """The compiled kernel that is asked for, None for an operator. InputError for options that do not go together."""
    given = [name for name in ("triton", "cubin") if getattr(options, name, None)]
    used = [name for name in (*_BOTH, *_TRITON, *_CUBIN) if getattr(options, name, None)]
    if not given:
        if used:
            raise InputError(f"--{_word(used[0])} goes with --triton FILE:KERNEL or --cubin FILE")
        return None
    if len(given) > 1 or options.operator:
        raise InputError(
            f"--{given[0]} stands in place of {'--cubin' if len(given) > 1 else options.operator}; give one"
        )
    for name in _CUBIN if given == ["triton"] else _TRITON:
        if name in used:
            raise InputError(f"--{_word(name)} goes with --{'cubin' if given == ['triton'] else 'triton'}")
    if not options.grid:
        raise InputError(f"--{given[0]} needs --grid, the CTAs of the launch, such as --grid 324 or --grid 18,18")
    return _triton(options) if given == ["triton"] else _cubin(options)


def _word(name: str) -> str:
    return name.replace("_", "-")


def _triton(options: argparse.Namespace) -> ProgramFile:
    from workloads.compiled import launch_sha256
    from workloads.compiled_arguments import read_argument, read_constant, read_pairs
    from workloads.triton_kernels import TritonLaunch, need_triton
    from workloads.written import WORD

    match = WORD.fullmatch(options.triton)
    if match is None:
        raise InputError(f"--triton {options.triton}: must be FILE.py:KERNEL, such as matmul.py:matmul_kernel")
    need_triton()
    arguments = tuple((name, read_argument(value)) for name, value in read_pairs("--arg", options.arg).items())
    constants = tuple((name, read_constant(value)) for name, value in read_pairs("--const", options.const).items())
    for name in ("num_warps", "num_stages", "num_ctas"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise InputError(f"--{_word(name)} {getattr(options, name)}: must be at least 1")
    return TritonLaunch(
        match["path"], match["function"], arguments, launch_sha256(match["path"], arguments, options.reference or ""),
        grid=options.grid.replace(" ", ""), constants=constants, num_warps=options.num_warps or 4,
        num_stages=options.num_stages or 3, num_ctas=options.num_ctas or 1, oracle=options.reference or "",
    )  # fmt: skip


def _cubin(options: argparse.Namespace) -> ProgramFile:
    from workloads.compiled import CubinKernel, launch_sha256
    from workloads.compiled_arguments import read_argument, read_dimensions, read_pairs

    if not options.block:
        raise InputError("--cubin needs --block, the threads of a CTA, such as --block 128")
    parameters = tuple((name, read_argument(value)) for name, value in read_pairs("--param", options.param).items())
    return CubinKernel(
        options.cubin, options.kernel or "", parameters,
        launch_sha256(options.cubin, parameters, options.reference or ""),
        grid=read_dimensions("--grid", options.grid), block=read_dimensions("--block", options.block),
        shared_bytes=options.shared or 0, oracle=options.reference or "",
        cluster=read_dimensions("--cluster", options.cluster) if options.cluster else None,
    )  # fmt: skip
