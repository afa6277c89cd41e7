"""Google's TPUs: instructions for a systolic array and the units around it."""

from arch.families import Family

FAMILY = Family(
    name="tpu",
    spec="arch.tpu:TpuSpec",
    kernels="workloads.tpu",
    runner="sim.app.families.tpu.runner:Tpu",
    example="tpu-v1",
    program="sim.tpu.program:Program",
    others_error=25,
    host="sim.app.families.tpu.host:HOST",
    belongs={"dram.bandwidth": "arch.belongs:interface"}
    | dict.fromkeys(("array.rows", "array.columns", "array.count"), "arch.belongs:paths"),
    units=("sim.tpu", "sim.memory.dram"),
    above={
        "sim.app": (
            "accumulators.rows",
            "array.columns",
            "array.count",
            "array.operands",
            "array.rows",
            "array.wide_interval",
            "clock.boost",
            "dram.bandwidth",
            "dram.size",
            "host.turnaround",
            "pcie.bandwidth",
            "power.energy.buffer",
            "power.energy.dram",
            "power.energy.mac",
            "power.energy.pcie",
            "power.limit",
            "power.static",
            "unified_buffer.bandwidth",
            "unified_buffer.size",
        ),
        "workloads": ("host.exp_ops", "weight_fifo.tile_columns", "weight_fifo.tile_rows"),
        "arch": ("dram.standard",),
    },
)
