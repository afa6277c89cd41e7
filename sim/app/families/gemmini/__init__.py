"""Berkeley's Gemmini: mappings of products and convolutions onto an array behind a bus."""

from arch.families import Family

FAMILY = Family(
    name="gemmini",
    spec="arch.gemmini:GemminiSpec",
    kernels="workloads.gemmini",
    runner="sim.app.families.gemmini.runner:Gemmini",
    example="gemmini",
    others_error=40,
    belongs={"dram.bandwidth": "arch.belongs:interface"},
    units=("sim.gemmini", "sim.memory.dram"),
    above={
        "sim.app": (
            "accumulator.size",
            "array.size",
            "clock.boost",
            "dma.bus",
            "dram.bandwidth",
            "dram.size",
            "l2.size",
            "scratchpad.size",
        ),
        "workloads": ("reservation.executes",),
        "arch": ("dram.standard",),
    },
)
