"""Another name of `sim.gpu.language.program`, kept for one release: kernels import the language from there."""

from sim.gpu.language.program import *  # noqa: F403
