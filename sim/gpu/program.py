"""Another name of `sim.gpu.language`, kept for one release: kernels import the language from there."""

from sim.gpu.language import *  # noqa: F403
