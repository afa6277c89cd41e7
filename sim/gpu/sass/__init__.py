"""Compiled kernels: SASS as `nvdisasm` prints it, executed for the 32 lanes of each warp and timed on the GPU engine.

`text` and `operands` read the disassembly, `opcodes` knows each instruction (`opcodes.csv`), `needed` finds what
addresses and branches depend on, `lower` makes tables of it for a machine and a launch; `lanes` computes, `memory` and
`loop` keep time, `bulk` has the TMA and mbarriers; `cubin` reads what the compiler says of a kernel, `kernel` puts it
together. `trace_files` and `traced` are Accel-Sim's traces; `replay`, `meanings` and `tiles` compute values for checks.
"""
