"""Tiles of a die: their borders, what crosses them, what that takes, and where units stand because of them."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema
import numpy as np
import pytest

from arch.errors import InputError
from arch.load import load_arch
from arch.rdu import RduSpec
from sim.app.run import simulate
from sim.rdu import place
from sim.rdu.layout import Network
from sim.rdu.lower import lower_section
from sim.rdu.place import Flow
from tests.rdu.conftest import SILENT, SMALL
from workloads.parse import parse
from workloads.rdu.select import build, choose

FOUR = SMALL | {"tiles.rows": 2, "tiles.columns": 2}
"""Four tiles of four rows and four columns."""
ATTENTION = "attention batch=1 heads=2 seq=96 head_dim=32"


def lowered(text: str, spec: RduSpec, schedule: str = "auto") -> list:
    op = parse(text).with_defaults("bf16")
    program = build(op, spec, choose(op, spec, schedule).config)
    return [lower_section(call.section, spec, program.addresses()) for call in program.calls]


def test_all_tiles_of_a_socket_are_alike() -> None:
    spec = load_arch("sn40l")
    grid = place.grid_of(spec)
    for units in (grid.pcus, grid.pmus):
        assert np.bincount(grid.tile_of(units)).tolist() == [130] * 8
    for tile in range(8):
        inside = grid.pcus[grid.tile_of(grid.pcus) == tile]
        assert (np.ptp(inside, axis=0) == (19, 12)).all()


def test_a_border_is_the_links_between_two_tiles() -> None:
    """Each of them leads from a unit to its neighbour in another tile of the same die, and no other link does."""
    grid = place.grid_of(load_arch("sn40l", FOUR | {"dies.count": 2}))
    step = {place.EAST: (0, 1), place.WEST: (0, -1), place.SOUTH: (1, 0), place.NORTH: (-1, 0)}
    each = grid.columns // 2
    for (direction, row, column), border in np.ndenumerate(grid.borders):
        to = np.array([[row, column]]) + np.array(step[direction])
        if not (0 <= to[0, 0] < grid.rows and 0 <= to[0, 1] < grid.columns):
            continue
        other = grid.tile_of(to)[0] != grid.tile_of(np.array([[row, column]]))[0]
        assert border == (other and column // each == to[0, 1] // each)


@pytest.mark.parametrize(("target", "borders"), [((3, 3), 0), ((3, 4), 1), ((4, 3), 1), ((7, 7), 2)])
def test_a_way_crosses_as_many_borders_as_tiles_lie_between(target: tuple[int, int], borders: int) -> None:
    grid = place.grid_of(load_arch("sn40l", FOUR))
    assert place.borders(grid, Flow(np.array([[0, 0]]), [np.array([[1, 1], target])], 64)) == borders


def test_latency_and_width_of_borders_are_paid_by_what_crosses_them() -> None:
    """Latency comes once a border on the way of a channel; a narrow border keeps its links busy for longer."""
    quiet = FOUR | SILENT | {"tiles.latency": 0, "tiles.bandwidth": "4096 B/clk"}
    free, late, narrow = (
        load_arch("sn40l", quiet | more) for more in ({}, {"tiles.latency": 5}, {"tiles.bandwidth": "1 B/clk"})
    )
    crossed = 0
    for before, after in zip(lowered(ATTENTION, free)[0].channels, lowered(ATTENTION, late)[0].channels, strict=True):
        added = (after.ways.latency_ticks - before.ways.latency_ticks) / 256 / 5
        assert added in range(5)
        assert after.ways.control_ticks - before.ways.control_ticks == added * 256 * 5
        crossed += added > 0
    assert crossed > 0
    cycles = [simulate(ATTENTION, spec).cycles for spec in (free, late, narrow)]
    assert cycles[0] < cycles[1] < cycles[2]


def test_one_tile_is_a_die_without_tiles() -> None:
    spec = load_arch("sn40l", SMALL | {"tiles.latency": 100, "tiles.bandwidth": "1 B/clk"})
    assert simulate(ATTENTION, spec).cycles == simulate(ATTENTION, spec.model_copy(update={"tiles": None})).cycles


def test_blocks_that_a_tile_can_hold_stand_in_one() -> None:
    """Neither side by side over a border, nor, where they share a column, one above the other."""
    spec = load_arch("sn40l")
    for text, schedule in (("softmax rows=4096 cols=1024", "auto"), ("layernorm rows=4096 cols=4096", "auto")):
        for configuration in lowered(text, spec, schedule):
            for units, cost in zip(configuration.pcus, configuration.costs, strict=True):
                if cost.pcus and np.ptp(units[:, 1]) < 13:
                    assert len(set(configuration.grid.tiles_of(units)[:, 1])) == 1
                if 0 < cost.pcus < 5:
                    assert len(set(configuration.grid.tile_of(units))) == 1


def test_a_buffer_keeps_to_the_tile_of_its_reader() -> None:
    grid = place.grid_of(load_arch("sn40l", FOUR))
    free = np.ones(len(grid.pmus), np.int64)
    reader = next(unit for unit in grid.pcus if unit[1] == 3 and unit[0] in (1, 2))
    near = [unit for unit in grid.pmus if np.abs(unit - reader).sum() == 1]
    assert len(near) == 4
    assert any(unit[1] == 4 for unit in near), "one of the neighbours stands in the next tile"
    columns = [grid.pmus[place.nearest_free(free, reader[None], grid)][0, 1] for _ in near]
    assert max(columns[:3]) <= 3


def test_reports_say_what_crosses() -> None:
    report = simulate("gemm m=1024 n=1024 k=1024", "sn40l")
    document = report.to_dict()
    schema = json.loads(resources.files("sim.app.report").joinpath("schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(json.dumps(document)), schema)
    tiles = document["rdu"]["placement"]["tiles"]
    assert (tiles["count"], tiles["used"]) == (8, 8)
    (configuration,) = lowered("gemm m=1024 n=1024 k=1024", load_arch("sn40l"), report.record.kernels[0].schedule)
    assert tiles["border_bytes"] == round(configuration.link_load[Network.VECTOR][configuration.grid.borders].sum()) > 0
    assert "tiles                 8 of 8; " in str(report)
    assert "tiles" not in simulate("softmax rows=64 cols=64", "plasticine").to_dict()["rdu"]["placement"]


def test_more_tiles_than_rows_are_refused() -> None:
    with pytest.raises(InputError, match=r"tiles\.rows: 41 tiles in 40 rows of the mesh; nearest: 40"):
        load_arch("sn40l", {"tiles.rows": 41})
