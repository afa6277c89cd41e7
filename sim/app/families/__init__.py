"""How an operator becomes a run on a machine: what is computed meets how time passes, one `Family` each."""

from __future__ import annotations

from arch.errors import InputError
from sim.app.families.family import Family


def family_of(name: str) -> Family:
    """What runs operators on machines of a family. Only the family that is asked for is imported."""
    match name:
        case "gpu":
            from sim.app.families.gpu import Gpu

            return Gpu()
        case "tpu":
            from sim.app.families.tpu import Tpu

            return Tpu()
        case "rdu":
            from sim.app.families.rdu import Rdu

            return Rdu()
        case "gemmini":
            from sim.app.families.gemmini import Gemmini

            return Gemmini()
    raise InputError(f"machines of family {name} cannot be run; families are gpu, tpu, rdu, gemmini")
