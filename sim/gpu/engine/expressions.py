"""Values of a program's expressions for a warp."""

from sim.engine.jit import inner
from sim.gpu.lower.tables import Affine, Operator, Scratch


@inner(inline=True)
def evaluate(prog, warps, stack, w, e):
    """Value of expression `e` for warp `w`."""
    affine = prog.affine
    terms = affine[e, Affine.TERMS]
    if terms < 0:
        return run_bytecode(prog.expr, prog.expr_at, prog.tables, prog.limits, warps, stack, w, e)
    value = affine[e, Affine.CONST]
    for i in range(terms):
        value += affine[e, Affine.FACTOR0 + 2 * i] * warps[w, affine[e, Affine.COLUMN0 + 2 * i]]
    return value if affine[e, Affine.THEN] == 0 else step(affine, prog.tables, e, value)


@inner
def step(affine, tables, e, value):
    """What follows the affine part of expression `e`, which has a value."""
    by = affine[e, Affine.BY]
    if affine[e, Affine.THEN] == Operator.DIV:
        value //= by
    elif affine[e, Affine.THEN] == Operator.MOD:
        value %= by
    else:
        value = tables[by + value]
    return value + affine[e, Affine.PLUS]


@inner
def run_bytecode(expr, expr_at, tables, limits, warps, stack, w, e):
    """`evaluate` of what is not affine. The first value that leaves its limits is noted; another one goes on."""
    n = 0
    r = 0  # top of the stack
    for i in range(expr_at[e], expr_at[e + 1]):
        op = expr[i, 0]
        arg = expr[i, 1]
        if op == Operator.CONST:
            stack[n] = r
            n += 1
            r = arg
        elif op == Operator.VARIABLE:
            stack[n] = r
            n += 1
            r = warps[w, arg]
        elif op == Operator.TABLE:
            r = tables[arg + r]
        elif op == Operator.WITHIN:
            if r < limits[arg, 0] or r > limits[arg, 1]:
                if stack[Scratch.FAULT] == 0:
                    stack[Scratch.FAULT] = arg + 1
                    stack[Scratch.VALUE] = r
                r = limits[arg, 0]
        else:
            n -= 1
            a = stack[n]
            b = r
            if op == Operator.ADD:
                r = a + b
            elif op == Operator.SUB:
                r = a - b
            elif op == Operator.MUL:
                r = a * b
            elif op == Operator.DIV:
                r = a // b
            elif op == Operator.MOD:
                r = a % b
            elif op == Operator.XOR:
                r = a ^ b
            elif op == Operator.AND:
                r = a & b
            elif op == Operator.SHL:
                r = a << b
            elif op == Operator.LT:
                r = 1 if a < b else 0
            elif op == Operator.EQ:
                r = 1 if a == b else 0
            elif op == Operator.MIN:
                r = min(a, b)
            else:  # Operator.MAX
                r = max(a, b)
    return r
