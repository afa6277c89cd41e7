"""The tile language: the vocabulary in which GPU kernels are written.

A `Kernel` is built once per launch by a plain function of (problem, machine, tile configuration). It names global
tensors, shared tiles, barriers and roles; a role's body is `Op`s, `Loop`s and `Assign`s. Loops stay symbolic: bounds
and coordinates are integer expressions over CTA coordinates, loop variables and warp numbers. One object, three
readers: the lowering (`sim.gpu.lower.kernel`), the interpreter (`sim.gpu.check.interpret`) and the listing
(`sim.gpu.lower.listing`).

Kernels import the language from here. Opcodes are PTX's, names of tiles and pipelines follow ThunderKittens and
CUTLASS.
"""

from sim.gpu.language.builder import KernelBuilder, RoleBuilder
from sim.gpu.language.expressions import (
    BUILTIN_VARS,
    CLUSTER_RANK,
    CTA_X,
    CTA_Y,
    CTA_Z,
    WARP,
    Binary,
    Const,
    Expr,
    IntLike,
    Table,
    Var,
    as_expr,
    evaluate,
    maximum,
    minimum,
    table,
)
from sim.gpu.language.program import Assign, Kernel, Loop, Op, Program, Role, Statement, walk
from sim.gpu.language.ring import Ring
from sim.gpu.language.tensors import Buffer, GlobalTensor, MBarrier, RegisterTile, SharedTile, TensorTile, View

__all__ = [
    "BUILTIN_VARS",
    "CLUSTER_RANK",
    "CTA_X",
    "CTA_Y",
    "CTA_Z",
    "WARP",
    "Assign",
    "Binary",
    "Buffer",
    "Const",
    "Expr",
    "GlobalTensor",
    "IntLike",
    "Kernel",
    "KernelBuilder",
    "Loop",
    "MBarrier",
    "Op",
    "Program",
    "RegisterTile",
    "Ring",
    "Role",
    "RoleBuilder",
    "SharedTile",
    "Statement",
    "Table",
    "TensorTile",
    "Var",
    "View",
    "as_expr",
    "evaluate",
    "maximum",
    "minimum",
    "table",
    "walk",
]
