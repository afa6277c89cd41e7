"""Families of machines are found: one folder, or one entry point, is a family for every command."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import sim.app.families
from arch import families
from arch.errors import InputError
from sim.app.cli import main
from sim.app.figures import declared, units
from workloads import registry

ROOT = Path(__file__).resolve().parents[1]
TALLY = Path(__file__).parent / "reference" / "tally"
RUN = ("run", "sum", "n=1000")


def forget() -> None:
    """What is known of families and their kernels is looked up again."""
    for cached in (families._names, families.family, registry.index, declared):
        cached.cache_clear()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The file of a machine whose family is a folder more below `sim/app/families`."""
    shutil.copytree(TALLY, tmp_path / "more" / "tally", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sim.app.families, "__path__", [*sim.app.families.__path__, str(tmp_path / "more")])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    importlib.invalidate_caches()
    forget()
    yield str(tmp_path / "more" / "tally" / "tally.yaml")
    for name in [name for name in sys.modules if name.startswith("sim.app.families.tally")]:
        del sys.modules[name]
    for key in [key for key in registry._registered if key[1] == "tally"]:
        del registry._registered[key]
    forget()


def test_a_folder_is_a_family_for_every_command(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert main(list(words)) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    report = said(*RUN, "--arch", machine)
    assert "What the adder did" in report
    assert "The adder is busy." in report
    found = json.loads(said(*RUN, "--arch", machine, "--json"))
    cycles = found["cycles"]
    assert (found["family"], found["tally"]["width"]) == ("tally", 2)
    wide = json.loads(said(*RUN, "--arch", machine, "--set", "adder.width=4", "--json"))["cycles"]
    assert (cycles, wide) == (501, 251)  # 1000 numbers and their sum
    Path("wide.yaml").write_text(f"base: {machine}\nadder:\n  width: [4, test]\n")
    both = said("compare", "sum", "n=1000", "--arch", machine, "wide.yaml")
    assert "501" in both
    assert "251" in both
    swept = said("sweep", "sum", "n=1000", "--arch", machine, "--vary", "adder.width=1,2,4", "--workers", "1")
    assert "501" in swept
    assert "adder.width" in said("archs", machine)
    assert "tally" in said("ops", "sum")
    assert "add" in said(*RUN, "--arch", machine, "--listing")
    said("trace", "sum", "n=1000", "--arch", machine, "-o", "out.pftrace")
    assert Path("out.pftrace").stat().st_size > 0
    said(*RUN, "--arch", machine, "--html", "out.html")
    assert "The adder is busy." in Path("out.html").read_text()
    assert units("tally") == ("sim.app.families.tally.runner",)


def test_an_entry_point_is_a_family_too(tmp_path: Path) -> None:
    shutil.copytree(TALLY, tmp_path / "my_tally", ignore=shutil.ignore_patterns("__pycache__"))
    metadata = tmp_path / "my_tally-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-tally\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[tilewave.families]\ntally = my_tally:FAMILY\nbroken = my_tally:NOTHING\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "sim.app.cli", *RUN, "--arch", str(tmp_path / "my_tally" / "tally.yaml")]
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tally"]["width"] == 2
    assert found["extensions"]["family"]["package"] == "my-tally 1.0"
    other = tmp_path / "other.yaml"
    other.write_text("family: broken\n")
    done = subprocess.run(
        [*command[:-1], str(other)], env=environment, capture_output=True, text=True, cwd=tmp_path
    )  # fmt: skip
    assert done.returncode == 2
    assert "family broken of my-tally 1.0: AttributeError" in done.stderr


def test_an_unknown_family_is_named_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"family 'gpus' is unknown, one of gemmini, gpu, rdu, tpu; nearest: gpu"):
        families.family("gpus")


@pytest.mark.parametrize("name", list(families.families()))
def test_what_a_family_names_exists(name: str) -> None:
    family = families.family(name)
    for what in ("spec", "runner", "program", "check_program", "graph_forms"):
        if getattr(family, what):
            family.load(what)
    import_module(family.kernels)
    assert units(name)


def test_no_other_file_dispatches_on_the_name_of_a_family() -> None:
    """The words stand in their folders, in decorators and in descriptions of machines alone."""
    named = re.compile(rf"""(==|!=|\bin|case|\bget\(|[^l]\[)\s*\(?["']({"|".join(families.families())})["']""")
    for package in ("arch", "sim", "workloads"):
        for path in (ROOT / package).rglob("*.py"):
            place = path.relative_to(ROOT).as_posix()
            if not place.startswith("sim/app/families/"):
                assert not named.search(path.read_text(encoding="utf-8")), place
