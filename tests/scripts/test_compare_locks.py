"""`scripts/compare_locks.py`: values count, hashes do not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "compare_locks.py"

LOCK = """\
format = 2
version = "1"

[case."a b"]
arch = "t4"
machine = "00"
kernels = "11"
schedule = "mma"
cycles = 5
energy_fj = 7
counters.ctas = 3
stalls.warps.wait = 1.50000
"""


def run(tmp_path: Path, old: str, new: str, *words: str) -> int:
    spec = importlib.util.spec_from_file_location("compare_locks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "old").write_text(old)
    (tmp_path / "new").write_text(new)
    code: int = module.main([str(tmp_path / "old"), str(tmp_path / "new"), *words])
    return code


@pytest.mark.parametrize("change", [('"00"', '"0f"'), ('"11"', '"1f"'), ('version = "1"', 'version = "2"')])
def test_hashes_and_versions_do_not_count(tmp_path: Path, change: tuple[str, str]) -> None:
    assert run(tmp_path, LOCK, LOCK.replace(*change)) == 0


@pytest.mark.parametrize(
    "change",
    [
        ("cycles = 5", "cycles = 6"),
        ("energy_fj = 7", "energy_fj = 8"),
        ("energy_fj = 7\n", ""),
        ("ctas = 3", "ctas = 4"),
        ("wait = 1.50000", "wait = 1.50001"),
        ('"mma"', '"simt"'),
        ('"a b"', '"c"'),
    ],
)
def test_values_count(tmp_path: Path, change: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, LOCK, LOCK.replace(*change)) == 1
    assert "a b: " in capsys.readouterr().out


def test_new_cases_may_be_allowed(tmp_path: Path) -> None:
    more = LOCK + '[case."c"]\ncycles = 1\n'
    assert run(tmp_path, LOCK, more) == 1
    assert run(tmp_path, LOCK, more, "--allow-new") == 0
    assert run(tmp_path, more, LOCK, "--allow-new") == 1


def test_a_file_that_is_none_is_bad_input(tmp_path: Path) -> None:
    assert run(tmp_path, LOCK, "nonsense") == 2


def test_a_case_may_be_kept_in_short(tmp_path: Path) -> None:
    short = LOCK.replace("counters.ctas = 3\nstalls.warps.wait = 1.50000\n", "")
    assert run(tmp_path, LOCK, short) == 1
    assert run(tmp_path, LOCK, short, "--allow-short") == 0
    assert run(tmp_path, LOCK, short.replace("cycles = 5", "cycles = 6"), "--allow-short") == 1
    assert run(tmp_path, LOCK, LOCK.replace("counters.ctas = 3\n", ""), "--allow-short") == 1  # others are there
