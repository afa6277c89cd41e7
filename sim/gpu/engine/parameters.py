"""The units of the GPU engine, and the parameters of a launch, of which each unit computes its part."""

from __future__ import annotations

import numpy as np

from arch.gpu import GpuSpec
from sim.gpu.engine import fetch, global_memory, semaphores, tma
from sim.gpu.units import barriers, chip, cp_async, cta, l1, policies, port, shared, tcgen05, tensor, tree
from sim.gpu.units.chip import Launching, Part

UNITS = (
    chip,
    tree,
    cta,
    fetch,
    policies,
    tensor,
    tcgen05,
    shared,
    port,
    l1,
    global_memory,
    cp_async,
    tma,
    barriers,
    semaphores,
)
"""Modules with `FIGURES`, the figures of a preset that they read, and `parameters`."""


def parameters(spec: GpuSpec, launch: Launching) -> np.ndarray:
    """The parameter array of a launch. Raises InputError for a machine that the engine cannot take."""
    p = np.zeros(Part.WIDTH, dtype=np.int64)
    for unit in UNITS:
        for index, value in unit.parameters(spec, launch).items():
            p[index] = value
    return p
