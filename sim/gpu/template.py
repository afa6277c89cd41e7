"""Another name of `sim.gpu.language.template`, kept for one release: kernels import it from there."""

from sim.gpu.language.template import *  # noqa: F403
