"""Colours: one a state everywhere, states of one machine apart, idle light, red for what is wrong alone."""

import colorsys
import re
from pathlib import Path

import pytest

from sim.app.report import palette
from sim.gpu.units.events import Reason as GpuReason
from sim.rdu.layout import Reason as RduReason
from sim.tpu.machine import NON_MATRIX

STATES = {
    "gpu": [reason.name.lower() for reason in GpuReason],
    "rdu": [reason.name.lower() for reason in RduReason],
    "tpu": ["active", "weight_stall", "weight_shift", *NON_MATRIX],
}
ROOT = Path(__file__).resolve().parents[2]


def light(colour: str) -> tuple[float, float, float]:
    """Hue of 0 to 1, lightness, saturation."""
    return colorsys.rgb_to_hls(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))


@pytest.mark.parametrize("family", STATES)
def test_states_of_a_machine_are_told_apart(family: str) -> None:
    states = STATES[family]
    working = [state for state in states if palette.of_state(state) == palette.WORK]
    assert len(working) == 1
    others = [palette.of_state(s) for s in states if palette.of_state(s) != palette.IDLE]
    repeated = {s for s in states if others.count(palette.of_state(s)) > 1}
    # A TPU's nine reasons of one kind share tones where they are neighbours in meaning.
    assert not repeated if family != "tpu" else len(repeated) <= 4


def test_idle_is_light_and_nothing_but_what_is_wrong_is_red() -> None:
    assert light(palette.IDLE)[1] > 0.85
    for states in STATES.values():
        for state in states:
            hue, _, saturation = light(palette.of_state(state))
            assert not (saturation > 0.5 and (hue < 0.03 or hue > 0.95)), state
    assert light(palette.WRONG)[0] < 0.03


def test_a_state_is_found_however_it_is_written() -> None:
    assert palette.of_state("Long Scoreboard") == palette.of_state("long_scoreboard")
    assert palette.of_state("never heard of") == palette.of_state("never heard of")


def test_colours_are_stated_in_one_place() -> None:
    """Pictures take theirs from the palette; heat maps and greys of text aside."""
    found = {}
    for path in [*(ROOT / "sim" / "app").rglob("*.py"), *(ROOT / "scripts" / "lessons").glob("*.py")]:
        text = path.read_text(encoding="utf-8")
        if path.name != "palette.py":
            stated = re.findall(r"tab:\w+|\"C[0-9]\"|tab(?:10|20)|\"#[0-9a-fA-F]{6}\"", text)
            found[path.relative_to(ROOT).as_posix()] = stated
    assert {name: colours for name, colours in found.items() if colours} == {
        "sim/app/families/rdu/plots.py": ['"#a9cfa6"', '"#1f5f2a"'],
        "sim/app/report/animation.py": ['"#a9cfa6"'],
    }


def test_text_is_read_on_what_it_stands_on() -> None:
    assert palette.text_on(palette.IDLE) == "black"
    assert palette.text_on("#2f5f8f") == "white"
