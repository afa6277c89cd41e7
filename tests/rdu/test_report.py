"""Reports of dataflow machines: the schema, sums to the whole, and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from sim.app.families.rdu import report as rdu_report
from sim.app.run import compare, simulate

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "sim" / "app" / "report" / "schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text", ["softmax rows=256 cols=256", "llama model=tiny", "allreduce bytes=4096 devices=2", "copy_h2d bytes=4096"]
)
def test_reports_fit_the_schema_and_read_as_text(text: str) -> None:
    report = simulate(text, "sn40l")
    found = report.to_dict()
    jsonschema.validate(found, SCHEMA)
    for shares in found["stalls"].values():
        assert sum(shares.values()) == pytest.approx(1)
    for stage in found["rdu"]["stages"]:
        assert sum(stage["shares"].values()) == pytest.approx(1)
    assert "What bounds it" in str(report)


def test_picture_of_the_placed_pipeline() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    report = simulate("softmax rows=512 cols=512", "sn40l")
    figure = pyplot.figure(figsize=(12, 5), layout="constrained")
    draw = rdu_report.draw
    assert draw is not None
    draw(report, figure)
    grid, timeline = figure.axes[:2]
    assert {text.get_text() for text in grid.texts} == {"row_max", "subtract", "exponent", "row_sum", "divide"}
    assert len(timeline.get_yticklabels()) == 7
    pyplot.close(figure)


def test_two_presets_of_one_chip_share_a_table() -> None:
    table = compare("gemm m=256 n=256 k=256", ["sn40l", "sn40l-256mac", "plasticine"])
    assert [row["machine"] for row in table.to_dict()["rows"]] == ["sn40l", "sn40l-256mac", "plasticine"]
