"""The interpreter: replays an event log with numbers in the tiles, and says what the schedule computed and what it
did wrong.

Effects are applied in the order of the log's times. A buffer that is read with a write in flight gives NaN;
overwriting one that is being read, or with another write in flight, is a violation, and so is a barrier that was
passed before it was complete. Vector clocks (`sim.gpu.check.happens_before`) find in addition the accesses that only
lucky timing has ordered.

Rules of the language that are checked here:

- Shared memory and registers start as NaN; global tensors that are no inputs too. A global box is clipped at its
  tensor: outside it reads give zero and writes are dropped.
- Arithmetic on registers is ordered by the program. A load into registers that names a scoreboard (`into`) needs an
  op that waits for it (`after`); without `into` its destination is interlocked. Accumulators and register operands of
  an asynchronous product belong to it until its group is awaited, and registers used since the group's last fence are
  not its to use.
- One warp's own synchronous accesses to memory keep their order. What goes through the asynchronous proxy (TMA, the
  tensor core's reads of shared memory) needs `fence_async` after ordinary writes.
- mbarriers are initialised by the first warp of their CTA; everyone else needs a `bar_sync` or `cluster_sync` before
  using them. A CTA must outlive what its cluster sends to it, and its own bulk stores' reads of shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arch.errors import InputError
from sim.gpu.check.contents import Array, device_memory
from sim.gpu.check.findings import Violations
from sim.gpu.check.replay import Replay
from sim.gpu.language import GlobalTensor, Program, walk
from sim.gpu.units.events import EVENT_COLUMNS, Event


@dataclass(frozen=True)
class CheckResult:
    """What a replay found: output tensors (float arrays; NaN where nothing valid was stored) and violations, one line
    each."""

    outputs: dict[str, Array]
    violations: list[str]


def interpret(program: Program, events: NDArray[np.int64], inputs: Mapping[str, Array]) -> CheckResult:
    """Replays `events` (shape (rows, 8), columns `Event`) of `program` on `inputs` (tensor name to array of the
    tensor's shape).

    `inputs` must hold every tensor of role "input"; it may hold initial contents of others, which are NaN otherwise.
    Raises InputError for inputs that do not fit and for a log that is not one of this program.
    """
    events = np.asarray(events)
    if events.ndim != 2 or events.shape[1] != EVENT_COLUMNS:
        raise InputError(f"event log: shape {events.shape}; it must be (rows, {EVENT_COLUMNS})")
    _refuse_other_tensors(program)
    memory = device_memory(program, inputs)
    violations = Violations()
    # One warp's rows in the order of issue; the log may come in any order.
    order = np.lexsort((events[:, Event.T_ISSUE], events[:, Event.WARP], events[:, Event.CTA], events[:, Event.KERNEL]))
    events = events[order]
    with np.errstate(all="ignore"):
        for number, kernel in enumerate(program.kernels):
            first, last = np.searchsorted(events[:, Event.KERNEL], (number, number + 1))
            violations.kernel = kernel.name
            Replay(kernel, events[first:last], memory, violations).run()
    outputs = {t.name: memory[t.name].copy() for t in program.tensors if t.role == "output"}
    return CheckResult(outputs, violations.lines())


def _refuse_other_tensors(program: Program) -> None:
    """InputError for an op on a tensor that is not the program's, though it may have the name of one."""
    declared = {tensor.name: tensor for tensor in program.tensors}
    for op in (op for kernel in program.kernels for role in kernel.roles for op in walk(role.body)):
        for tensor in (view.buffer for view in op.views if isinstance(view.buffer, GlobalTensor)):
            known = declared.get(tensor.name)
            if known is None or (known.shape, known.dtype) != (tensor.shape, tensor.dtype):
                raise InputError(f"program {program.name}, {op}: {tensor.name} {tensor.shape} is none of its tensors")
