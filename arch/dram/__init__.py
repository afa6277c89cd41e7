"""Tables of DRAM standards, read by `arch.dram_standards`."""
