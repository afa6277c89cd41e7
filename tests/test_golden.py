"""The project's own baseline (`tilewave.toml`, `cycles.lock`): a change of the model shows here, accepted on purpose.

`pytest tests/test_golden.py --golden-update` records what is there now, here and in the example of docs/running.md.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from arch.load import list_archs, load_arch
from sim.app.cli import main
from sim.app.study.check import check, read_config
from sim.app.study.check_formats import as_text
from sim.app.study.lockfile import read

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "tilewave.toml"
RUNNING = ROOT / "docs" / "running.md"


def test_cycles_are_those_on_record(request: pytest.FixtureRequest) -> None:
    found = check(CONFIG, update=request.config.getoption("--golden-update"), workers=1)
    assert found.exit_code == 0, as_text(found)


def test_every_machine_has_a_case() -> None:
    assert {wanted.arch for wanted in read_config(CONFIG)} == set(list_archs())


def test_throttled_cases_are_throttled() -> None:
    """A case that the regulator does not hold would not notice what it does."""
    throttled = [wanted for wanted in read_config(CONFIG) if wanted.name.startswith("throttled")]
    assert len(throttled) >= 3
    lock = read(CONFIG.with_name("cycles.lock"))
    for wanted in throttled:
        boost_hz = load_arch(wanted.arch).clock.boost_hz
        assert lock.entries[wanted.name].digest.clock_hz < 0.95 * boost_hz, wanted.name


@pytest.mark.slow
def test_the_example_prints_what_is_shown(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    text = RUNNING.read_text(encoding="utf-8")
    ((block, command, shown),) = re.findall(r"```\n(\$ (tilewave [^\n]*)\n(.*?))```", text, re.DOTALL)
    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out
    if request.config.getoption("--golden-update"):
        RUNNING.write_text(text.replace(block, f"$ {command}\n{printed}"), encoding="utf-8")
    else:
        assert printed == shown
