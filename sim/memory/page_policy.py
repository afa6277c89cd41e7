"""How long a DRAM row stays open: page policies behind one interface.

A policy has a name (`POLICIES`), by whose number jitted code knows it, and two functions that give the last tick at
which a request may still join a row's batch: `open_until` when the row is activated, `kept_until` after data of it. A
row whose tick has passed is precharged, so that the next activate of its bank does not wait for that.

To add a policy: here its name and a branch in each function; its name in `arch.memory`, too.

`closed_adaptive` closes a row after tRAS, or after its last data, unless a request for it has come by then. `closed`
precharges after each access: none joins.
"""

from sim.engine.jit import inner

POLICIES = ("closed_adaptive", "closed")
"""As `dram.page_policy` names them; a policy's number is its place here."""

_CLOSED = POLICIES.index("closed")

_NEVER = -1


@inner(inline=True)
def open_until(policy: int, activate: int, ras: int) -> int:
    """Until when requests join a row that is activated at tick `activate`."""
    return _NEVER if policy == _CLOSED else activate + ras


@inner(inline=True)
def kept_until(policy: int, end: int) -> int:
    """Until when requests join a row whose latest data end at tick `end`, beyond tRAS."""
    return _NEVER if policy == _CLOSED else end
