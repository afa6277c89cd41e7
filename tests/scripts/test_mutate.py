"""`scripts/mutate.py`: a tenth of the mutants, every pattern, and that a mutant which nobody notices is told."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "scripts" / "mutate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutate"] = module
    spec.loader.exec_module(module)
    return module


def test_every_mutant_still_has_its_place(mutate: ModuleType) -> None:
    for mutant in mutate.MUTANTS:
        source = (ROOT / mutant.symbol.partition(":")[0]).read_text(encoding="utf-8")
        assert mutate.mutated(source, mutant) != source
        files = [word.partition("::")[0] for word in mutant.tests.split() if not word.startswith("-")]
        assert files
        assert all((ROOT / file).exists() for file in files)
    assert len({mutant.name for mutant in mutate.MUTANTS}) == len(mutate.MUTANTS)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["1/40", "11/40", "21/40", "31/40"])
def test_a_tenth_of_the_mutants_is_killed(part: str, mutate: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    became = mutate.main(["--part", part])
    printed = capsys.readouterr()
    assert became == 0, printed.out + printed.err


SOURCE = """LIMIT = 3


class Box:
    def size(self):
        return 1 + 1

    def other(self):
        return 1 + 1
"""


def test_a_pattern_is_looked_for_in_its_symbol_alone(mutate: ModuleType) -> None:
    found = mutate.mutated(SOURCE, mutate.Mutant("a", "f.py:Box.other", r"1 \+ 1", "5", ""))
    assert found == SOURCE[: SOURCE.rindex("1 + 1")] + "5\n"
    assert mutate.mutated(SOURCE, mutate.Mutant("a", "f.py:LIMIT", "3", "4", "")).startswith("LIMIT = 4\n")
    for symbol, pattern, message in (
        ("f.py:Box.other", "2", "0 matches"),
        ("f.py:Box", r"1 \+ 1", "2 matches"),
        ("f.py:Box.none", "1", "there is no Box.none"),
    ):
        with pytest.raises(ValueError, match=message):
            mutate.mutated(SOURCE, mutate.Mutant("a", symbol, pattern, "", ""))


@pytest.mark.slow
def test_a_mutant_that_nobody_notices_survives(
    mutate: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    harmless = mutate.Mutant(
        "text", "arch/errors.py:InputError", "Bad input", "Wrong input", "tests/arch/test_units.py"
    )
    monkeypatch.setattr(mutate, "MUTANTS", (harmless,))
    assert mutate.main([]) == 1
    assert "SURVIVED text" in capsys.readouterr().out
    assert mutate.main(["--part", "3/2"]) == 2


def test_a_test_that_fails_without_the_mutant_too_is_told(mutate: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "box.py").write_text("def one():\n    return 1\n")
    (tmp_path / "test_box.py").write_text(
        "import pytest, box\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_one(n): assert box.one() == 1\n"
        "def test_never(): assert False\n"
    )
    good, bad = (
        mutate.Mutant(name, "box.py:one", "return 1", "return 2", f"test_box.py::{test}")
        for name, test in (("good", "test_one"), ("bad", "test_never"))
    )
    found = {mutant: mutate.noticed(mutant, tmp_path) for mutant in (good, bad)}
    assert found == {good: {"test_box.py::test_one[1]"}, bad: {"test_box.py::test_never"}}
    mutate.check_without({good: found[good]}, tmp_path)
    with pytest.raises(ValueError, match="test_never fails without 'bad', too"):
        mutate.check_without(found, tmp_path)


def _gone(status: Path) -> bool:
    """Whether the process of a file of /proc has ended."""
    try:
        return status.read_text().split()[2] == "Z"
    except OSError:
        return True


def test_tests_that_hang_are_ended_with_what_they_started(mutate: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_waits.py").write_text(
        "import os, pathlib, subprocess, sys\n"
        "def test_waits():\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    pathlib.Path('child').write_text(str(child.pid))\n"
        "    child.wait()\n"
    )
    assert mutate.failures(tmp_path, ["test_waits.py"], False, limit_s=10.0) is None
    status = Path("/proc", (tmp_path / "child").read_text(), "stat")
    deadline = time.monotonic() + 20.0  # on a busy machine a killed process takes a while to go
    while not _gone(status) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _gone(status)
