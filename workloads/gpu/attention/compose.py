"""One program of several: kernels of other programs, with tensors of this one in the place of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sim.gpu.language import GlobalTensor, Kernel, Loop, Op, Statement, View


def on_tensors(kernel: Kernel, tensors: Mapping[str, GlobalTensor], name: str) -> Kernel:
    """`kernel`, called `name`, on the tensors that `tensors` gives for the names of its own."""
    roles = tuple(replace(role, body=_body(role.body, tensors)) for role in kernel.roles)
    return replace(kernel, name=name, roles=roles)


def _body(body: Sequence[Statement], tensors: Mapping[str, GlobalTensor]) -> tuple[Statement, ...]:
    out: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            out.append(replace(statement, body=_body(statement.body, tensors)))
        elif isinstance(statement, Op):
            dst = None if statement.dst is None else _view(statement.dst, tensors)
            out.append(replace(statement, dst=dst, srcs=tuple(_view(view, tensors) for view in statement.srcs)))
        else:
            out.append(statement)
    return tuple(out)


def _view(view: View, tensors: Mapping[str, GlobalTensor]) -> View:
    buffer = view.buffer
    return replace(view, buffer=tensors[buffer.name]) if isinstance(buffer, GlobalTensor) else view
