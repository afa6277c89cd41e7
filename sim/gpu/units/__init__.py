"""Units of a GPU: what owns time, whoever asks. They know no table of ops and no table of instructions.

A unit names the columns of state that it owns and the figures of a machine that it reads, and books work for what its
arguments say: ticks, bytes, warps. Both front ends use them: the tile language (`sim.gpu.engine`) and compiled kernels
(`sim.gpu.sass`).
"""
