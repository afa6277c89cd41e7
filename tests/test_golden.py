"""The project's own baseline (`tilewave.toml`, `cycles.lock`): a change of the model shows here, accepted on purpose.

`pytest tests/test_golden.py --golden-update`, or `tilewave check --update`, records what is there now.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from arch.load import list_archs
from sim.study.check import check, read_config
from sim.study.check_formats import as_text

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "tilewave.toml"


def test_cycles_are_those_on_record(request: pytest.FixtureRequest) -> None:
    found = check(CONFIG, update=request.config.getoption("--golden-update"), workers=1)
    assert found.exit_code == 0, as_text(found)


def test_every_machine_has_a_case() -> None:
    assert {wanted.arch for wanted in read_config(CONFIG)} == set(list_archs())
