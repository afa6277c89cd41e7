"""The hash of the program: every source that a number depends on changes it, pictures do not."""

from __future__ import annotations

import shutil
from pathlib import Path

from sim.app.fingerprint import PACKAGES, ROOT, code_hash, result_sources


def test_what_it_covers() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in result_sources()}
    for name in (
        "sim/gpu/engine/loop.py",
        "sim/memory/l2.py",
        "workloads/gpu/gemm/choose.py",
        "arch/gpu.py",
        "sim/app/report/figures.py",
    ):
        assert name in names
    for name in (
        "sim/app/cli/__init__.py",
        "sim/app/report/plots.py",
        "sim/app/study/store.py",
        "arch/presets/t4.yaml",
    ):
        assert (ROOT / name).exists()
        assert name not in names


def test_one_byte_is_another_version(tmp_path: Path) -> None:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / "a" / name, ignore=shutil.ignore_patterns("__pycache__", "*.csv"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    with open(tmp_path / "b" / "sim" / "gpu" / "engine" / "loop.py", "a") as file:
        file.write("\n")
    with open(tmp_path / "c" / "sim" / "app" / "report" / "plots.py", "a") as file:
        file.write("\n")
    assert code_hash(tmp_path / "a") == code_hash(tmp_path / "c") != code_hash(tmp_path / "b")
