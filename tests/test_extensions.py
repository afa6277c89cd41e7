"""Policies that other packages register: the example of docs/machines.md, installed, run, swept and changed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arch import extensions, load_arch
from arch.errors import InputError
from arch.extensions import SCHEDULERS
from sim.app.families.request import Request
from sim.app.study.case import code_of, key_of
from sim.engine.extensions import _loaded, one_of
from sim.engine.jit import cache_key, inner, kernel, kernel_sources

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
GREEDY = """

def greedy(since, last):
    return 0 if last else 62 - min(61, since)


like_gto = Scheduler(greedy)
wrong = Scheduler(lambda since: 0)
"""
NAMES = {
    "tilewave.schedulers": {
        "youngest": "my_policies:youngest", "like_gto": "my_policies:like_gto", "wrong": "my_policies:wrong",
        "gone": "my_policies:gone",
    },
    "tilewave.replacement": {"fifo": "my_policies:fifo"},
}  # fmt: skip


def install(folder: Path, package: str = "my-policies") -> Path:
    """Puts the package into a folder as pip does; returns its module."""
    (module,) = re.findall(r"```python\n(# my_policies.py\n.*?)```", GUIDE, re.DOTALL)
    file = folder / "my_policies.py"
    file.write_text(module + GREEDY)
    metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    groups = [
        f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in names.items())
        for group, names in NAMES.items()
    ]
    (metadata / "entry_points.txt").write_text("\n\n".join(groups) + "\n")
    return file


def forget() -> None:
    extensions._entry_points.cache_clear()
    extensions.registered.cache_clear()
    extensions._sources.cache_clear()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package's module, installed for this process."""
    monkeypatch.syspath_prepend(str(tmp_path))
    file = install(tmp_path)
    forget()
    yield file
    sys.modules.pop("my_policies", None)
    forget()


def asked() -> Request:
    return Request("copy n=64 dtype=fp32", load_arch("t4", ["sm.scheduler=youngest", "l2.replacement=fifo"]))


PROGRAM = """
import json, sys
from arch.errors import InputError
from sim import simulate
from sim.app.cli import main
from sim.memory import replacement

small = ["sm.count=1", "gpc.count=1"]
def run(scheduler):
    changed = [*small, f"sm.scheduler={scheduler}"]
    return simulate("gemm m=64 n=128 k=48 dtype=fp32", "t4", set=changed, schedule="simt 32x32x16 warp 16x16")
def refused(scheduler):
    try:
        return run(scheduler).cycles
    except InputError as error:
        return str(error)
def victims(name):
    policy, found = replacement.policy_number(name), []
    word = replacement.first_word(policy, 4)
    for way in range(4):
        word = replacement.fill(policy, word, 4, replacement.victim(policy, word, 4))
    word = replacement.touch(policy, word, 4, 0)
    for _ in range(5):
        found.append(replacement.victim(policy, word, 4))
        word = replacement.fill(policy, word, 4, found[-1])
    return found
said = {
    "cycles": {name: run(name).cycles for name in ("gto", "like_gto", "youngest")},
    "report": run("youngest").to_dict()["extensions"],
    "refused": [refused("wrong"), refused("gone")],
    "victims": {name: victims(name) for name in ("lru", "fifo")},
}
print(json.dumps(said))
main(["sweep", "copy n=1024 dtype=fp32", "--arch", "t4", "--vary", "sm.scheduler=gto,youngest", "--vary",
      "l2.replacement=lru,fifo", "--set", "sm.count=1", "--set", "gpc.count=1", "--no-tune", "--workers", "1", "--json",
      "--store", sys.argv[1]])
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What another process, whose engine is interpreted, prints: of its runs, and of a sweep."""
    folder = tmp_path_factory.mktemp("packages")
    install(folder)
    paths = os.pathsep.join([str(ROOT), str(folder)])
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder / "results.sqlite")],
        env={**os.environ, "PYTHONPATH": paths, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    first, _, rest = ran.stdout.partition("\n")
    return json.loads(first), json.loads(rest)


def test_a_scheduler_of_another_package_decides(said: tuple[dict[str, Any], dict[str, Any]]) -> None:
    cycles = said[0]["cycles"]
    assert cycles["like_gto"] == cycles["gto"] != cycles["youngest"]
    assert said[0]["report"]["sm.scheduler"]["package"] == "my-policies 1.0"


def test_a_replacement_policy_of_another_package_decides(said: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert said[0]["victims"] == {"lru": [1, 2, 3, 0, 1], "fifo": [0, 1, 2, 3, 0]}


def test_policies_of_other_packages_are_swept(said: tuple[dict[str, Any], dict[str, Any]]) -> None:
    rows = said[1]["rows"]
    assert len(rows) == 4
    assert [set(row["report"].get("extensions", {})) for row in rows] == [
        set(), {"l2.replacement"}, {"sm.scheduler"}, {"l2.replacement", "sm.scheduler"},
    ]  # fmt: skip


def test_what_cannot_be_loaded_is_refused_when_it_is_asked_for(said: tuple[dict[str, Any], dict[str, Any]]) -> None:
    wrong, gone = said[0]["refused"]
    assert wrong == (
        "wrong, entry point my_policies:wrong of my-policies 1.0 (tilewave.schedulers): priority must take 2 arguments"
    )
    assert "gone, entry point my_policies:gone of my-policies 1.0" in gone
    assert "AttributeError" in gone


def test_a_name_that_there_is_not_is_answered_with_all(module: Path) -> None:
    with pytest.raises(
        InputError, match="one of gto, lrr, oldest, two_level, gone, like_gto, wrong, youngest; nearest"
    ):
        load_arch("t4", ["sm.scheduler=yungest"])
    with pytest.raises(InputError, match="must be one of lru, srrip, fifo"):
        load_arch("t4", ["l1.replacement=random"])


def test_a_name_of_two_packages_is_refused(module: Path) -> None:
    install(module.parent, "your-policies")
    forget()
    with pytest.raises(InputError, match=r"several packages register it \(my-policies 1.0, your-policies 1.0\)"):
        load_arch("t4", ["sm.scheduler=youngest"])
    assert load_arch("t4").extensions == {}


def test_a_changed_policy_is_another_machine_and_another_engine(module: Path) -> None:
    plain, engine = load_arch("t4").content_hash(), kernel_sources(ROOT / "sim" / "gpu" / "engine" / "loop.py")
    other = [ROOT / "sim" / "tpu" / "kernel.py"]

    def found() -> tuple[str, ...]:
        request = asked()
        return request.machine.content_hash(), key_of(request), code_of(request), cache_key(engine)

    before, untouched = found(), cache_key(other)
    assert set(asked().machine.extensions) == {"sm.scheduler", "l2.replacement"}
    assert found() == before
    module.write_text(module.read_text() + "# another version\n")
    after = found()
    assert not set(before) & set(after)
    assert (load_arch("t4").content_hash(), cache_key(other)) == (plain, untouched)


def test_another_object_is_no_policy(module: Path) -> None:
    entry = extensions.Registered(SCHEDULERS, "mine", "my_policies:fifo", "my-policies 1.0")
    assert _loaded(entry).problem == "is a Replacement, must be a sim.engine.extensions.Scheduler"


def test_compiled_code_calls_the_policy_of_a_number() -> None:
    pick = one_of([lambda a, b: a + b, lambda a, b: a * b], lambda number, a, b: -1)

    @inner
    def through(number: int, a: int, b: int) -> Any:
        return pick(number, a, b)

    @kernel
    def call(number: int, a: int, b: int) -> Any:
        return through(number, a, b)

    assert [call(number, 3, 4) for number in range(3)] == [7, 12, -1]
