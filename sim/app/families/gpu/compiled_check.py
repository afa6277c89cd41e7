"""Check mode of compiled kernels: executed with values apart from time, in two orders (`sim.gpu.sass.replay`), whose
results are compared with each other and with a reference.

Of a Triton kernel the reference is Triton's interpreter; a function of one's own may stand in its place. Without one
the rules alone are judged: addresses, barriers, shared memory that is read before anything was written there.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from sim.app.report.record import CheckResult
from sim.gpu.language import GlobalTensor
from sim.gpu.sass.contents import drawn
from sim.gpu.sass.floats import NAMES, of_bf16, of_fp8
from sim.gpu.sass.forms import form_of
from sim.gpu.sass.kernel import SassKernel, SassLaunchProgram
from sim.gpu.sass.replay import KernelValues, Memory
from sim.gpu.sass.tables import Unit
from workloads.ops.dtypes import epsilon

NO_REFERENCE = "Check: the kernel has no reference; addresses, barriers and shared memory alone were judged."

_SUMS = 4096

Arrays = dict[str, NDArray[np.generic]]


def check_compiled(program: SassLaunchProgram) -> tuple[CheckResult, list[str]]:
    """The result, and a sentence for each thing wrong. InputError for what has no values."""
    (kernel,) = program.kernels
    assert isinstance(kernel, SassKernel)
    formats = {tensor.name: tensor.dtype for tensor in program.tensors}
    before = {tensor.name: _content(tensor, seed, kernel) for seed, tensor in enumerate(program.tensors)}
    after, violations = _executed(program, kernel, before, late=False)
    late, violations_late = _executed(program, kernel, before, late=True)
    violations += [violation for violation in violations_late if violation not in violations]
    violations += _depending_on_order(kernel, formats, after, late)
    notes = [f"Check: {violation}." for violation in violations]
    if program.expected is None:
        return CheckResult(not violations, None), [NO_REFERENCE, *notes]
    wanted = program.expected({name: array.copy() for name, array in before.items()})
    passed, worst = not violations, 0.0
    for name, array in wanted.items():
        if name not in after or array.shape != after[name].shape:
            known = ", ".join(f"{n} {list(a.shape)}" for n, a in after.items())
            raise InputError(f"check: the reference gives {name} {list(array.shape)}; the arrays are {known}")
        right = _numbers(array, formats[name])
        error = max(_error(_numbers(found[name], formats[name]), right) for found in (after, late))
        allowed = _allowed(formats[name])
        worst = max(worst, error)
        if not error <= allowed:
            passed = False
            notes.append(f"Check: {name}: relative error {error:.2e}, rounding alone explains {allowed:.2e}.")
    return CheckResult(passed, worst), notes


def _allowed(dtype: str) -> float:
    """Relative error that rounding explains."""
    return epsilon(dtype) + _SUMS * epsilon("fp32")


def _depending_on_order(kernel: SassKernel, formats: dict[str, str], early: Arrays, late: Arrays) -> list[str]:
    """A sentence for each array that the two orders leave different, more than sums in another order do. Kernels that
    ask what an atomic found may do so and be right: a reference alone can tell."""
    if any(form_of(one).opcode.unit in (Unit.ATOMG, Unit.ATOM) for one in kernel.instructions()):
        return []
    found = []
    for name, array in early.items():
        error = _error(_numbers(late[name], formats[name]), _numbers(array, formats[name]))
        if not error <= _allowed(formats[name]):
            found.append(
                f"{name} depends on the order of warps and CTAs, or on when copies and products are over "
                f"(relative difference {error:.2e}); is a wait or a barrier missing?"
            )
    return found


def _content(tensor: GlobalTensor, seed: int, kernel: SassKernel) -> NDArray[np.generic]:
    """Numbers for an array: those of its file, or random ones."""
    given = kernel.contents.get(tensor.name)
    if given is not None:
        return np.asarray(given)
    return drawn(tensor, seed)


def _executed(
    program: SassLaunchProgram, kernel: SassKernel, before: Arrays, *, late: bool
) -> tuple[Arrays, list[str]]:
    """The arrays behind the kernel in one of the orders, and what it violated."""
    addresses = program.addresses()
    first = min(addresses.values())
    end = max(addresses[name] + array.nbytes for name, array in before.items())
    content = np.zeros(end - first, dtype=np.uint8)
    for name, array in before.items():
        at = addresses[name] - first
        content[at : at + array.nbytes] = np.frombuffer(array.tobytes(), dtype=np.uint8)
    memory = Memory(content, first, {name: (addresses[name], array.nbytes) for name, array in before.items()})
    replay = KernelValues(kernel, kernel.bank(addresses), memory, kernel.shared_range, late=late)
    replay.run()
    after = {}
    for name, array in before.items():
        at = addresses[name] - first
        after[name] = content[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
    return after, replay.violations


def _numbers(array: NDArray[np.generic], dtype: str) -> NDArray[np.float64]:
    if dtype == "bf16" and array.dtype == np.uint16:
        return of_bf16(array.astype(np.uint16)).astype(np.float64)
    if dtype in NAMES.values() and array.dtype == np.uint8:
        return of_fp8(array.astype(np.uint8), dtype).astype(np.float64)
    return array.astype(np.float64)


def _error(found: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    """Largest difference, relative to the largest number."""
    if not (np.isfinite(found) == np.isfinite(wanted)).all():
        return math.inf
    finite = np.isfinite(wanted)
    scale = float(np.abs(wanted[finite]).max(initial=0.0))
    difference = float(np.abs(found[finite] - wanted[finite]).max(initial=0.0))
    return difference / scale if scale else difference
