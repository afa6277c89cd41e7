"""A family of machines in one folder: one adder, a number a cycle. Tests put it beside those that ship."""

from arch.families import Family

FAMILY = Family(
    name="tally",
    spec=f"{__name__}.spec:TallySpec",
    kernels=f"{__name__}.kernels",
    runner=f"{__name__}.runner:Tally",
    example="tally.yaml",
    units=(f"{__name__}.runner",),
    above={"sim.app": ("clock.boost",)},
    estimate_errors={"sum": 1},
    others_error=9,
)
