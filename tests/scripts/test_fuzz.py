"""`scripts/fuzz.py`: a short run of the fuzzer, and that it notices what it is there to notice."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

from arch.errors import InputError

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fuzz.py"


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    return module


def test_random_changes_end_in_a_result_or_one_error(fuzz: ModuleType) -> None:
    assert fuzz.random_cases(1300, 20_261_122, []) == []


@pytest.mark.parametrize(
    "name",
    ["nested brackets", "alias bomb", "recursive alias", "base that never ends", "pipe", "m=1:2:*1.00000001",
     "tolerance nan", "window", "nested configuration"],
)  # fmt: skip
def test_what_broke_it_once_is_one_line(fuzz: ModuleType, name: str) -> None:
    assert fuzz.hostile_cases([name]) == []


def test_every_known_case_has_a_command_line(fuzz: ModuleType, tmp_path: Path) -> None:
    found = fuzz.hostile(tmp_path)
    assert len(found) > 20
    assert all(words and all(words) for words in found.values())


def refuse(text: str, folder: Path) -> object:
    raise InputError("" if text == "silent" else "no")


def crash(text: str, folder: Path) -> object:
    return int(text)


def test_it_tells_an_error_from_a_traceback(fuzz: ModuleType, tmp_path: Path) -> None:
    assert fuzz.tried(fuzz.Kind("a", str, refuse), "x", tmp_path) == ""
    assert "without a text" in fuzz.tried(fuzz.Kind("a", str, refuse), "silent", tmp_path)
    assert "ValueError" in fuzz.tried(fuzz.Kind("a", str, crash), "x", tmp_path)


def test_the_same_seed_gives_the_same_cases(fuzz: ModuleType) -> None:
    texts = [[fuzz.changed(random.Random(seed), "sm.count=66") for seed in range(50)] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 40


def die(text: str, folder: Path) -> object:
    if text == "2":
        os.kill(os.getpid(), signal.SIGSEGV)
    return None


def test_it_finds_a_crash_and_goes_on_behind_it(fuzz: ModuleType) -> None:
    numbers = iter(range(10))
    found = fuzz.tried_cases(fuzz.Kind("a", lambda rng: str(next(numbers)), die), 0, range(4))
    assert len(found) == 1
    assert "case 2: " in found[0]
    assert "SIGSEGV" in found[0]
