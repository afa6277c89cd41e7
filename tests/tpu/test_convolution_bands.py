"""Images that are too large for the unified buffer come in bands of rows."""

import pytest

from arch.errors import InputError
from arch.load import load_arch
from arch.tpu import TpuSpec
from sim import simulate

BASE = ("array.rows=8", "array.columns=8", "accumulators.rows=64", "weight_fifo.depth=2")


def machine(buffer: int) -> TpuSpec:
    spec: TpuSpec = load_arch("tpu-v1", (*BASE, f"unified_buffer.size={buffer} B"))
    return spec


@pytest.mark.parametrize(
    "workload",
    [
        "conv2d n=2 c=6 h=40 w=20 k=5 r=3 s=3 out=int8",
        "conv2d n=1 c=6 h=41 w=20 k=5 r=5 s=3 stride=2 pad=2 out=int8",
        "conv2d n=2 c=6 h=40 w=20 k=6 r=3 s=2 dilation=2 pad=3 groups=3 layout=nchw out=int8",
    ],
)
def test_bands_give_the_same_numbers(workload: str) -> None:
    small = simulate(workload, machine(3072), check=True)
    assert small.record.check is not None
    assert small.record.check.passed
    whole = simulate(workload, machine(1 << 20))
    bands, images = (r.to_dict()["bytes"]["pcie"] for r in (small, whole))
    assert bands["write"] == images["write"]
    # Rows that two bands share come twice, but no row comes more than twice.
    assert images["read"] < bands["read"] < 2 * images["read"]


def test_one_row_of_windows_must_fit() -> None:
    with pytest.raises(InputError, match=r"unified_buffer\.size = 2 KiB"):
        simulate("conv2d n=1 c=32 h=40 w=40 k=5 r=3 s=3", machine(2048))
