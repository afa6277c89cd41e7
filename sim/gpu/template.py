"""Another name of `sim.gpu.language`, kept for one release: kernels import the template from there."""

from sim.gpu.language import Load, pipelined

__all__ = ["Load", "pipelined"]
