"""The registry: what is found by reading is what is registered by running, and what the documentation lists."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import workloads
from arch.errors import InputError
from arch.families import families
from arch.load import load_arch
from sim.app.families.stepwise import STEPS
from workloads import graphs, ops, registry
from workloads.ops import Gemm
from workloads.ops.base import REGISTRY
from workloads.registry import AUTO, builder, chooser, index, operators, register, registered, schedules

PAGE = Path(__file__).resolve().parents[2] / "docs" / "workloads.md"


@pytest.mark.parametrize("family", families())
def test_what_is_read_is_what_is_registered(family: str) -> None:
    package = importlib.import_module(f"workloads.{family}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    known = {(operator, kind) for operator, of, kind in registry._registered if of == family}
    assert known == set(index(family))
    for (operator, kind), module_name in index(family).items():
        function = registered(operator, family, kind)
        assert function is not None
        assert function.__module__ == module_name
        assert registered(operator, family, AUTO) is not None


def test_only_what_is_asked_for_is_imported() -> None:
    code = (
        "import sys; from workloads.registry import schedules, registered\n"
        "print(len(schedules('gemm', 'gpu')), 'workloads.gpu.gemm.wgmma' in sys.modules)\n"
        "registered('transpose', 'gpu', 'auto')\n"
        "print('workloads.gpu.pointwise.transpose' in sys.modules, 'workloads.gpu.gemm.wgmma' in sys.modules)\n"
    )
    root = Path(workloads.__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.split() == ["7", "False", "True", "False"]


def test_operators_found_by_reading_are_what_their_modules_declare() -> None:
    for package in (ops, graphs):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    registered_here = {word for word, cls in REGISTRY.items() if cls.__module__.startswith("workloads.")}
    assert registered_here == set(ops.operator_words())
    for word in ops.operator_words():
        assert ops.operator_class(word).word == word
    for name in ops.__all__:
        assert getattr(ops, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Gem'"):
        ops.Gem  # noqa: B018


def test_an_operator_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys; from workloads.ops import operator_class, Softmax\n"
        "print('workloads.ops.gemm' in sys.modules, 'workloads.ops.rowwise' in sys.modules)\n"
        "operator_class('moe')\n"
        "print('workloads.ops.moe' in sys.modules, 'workloads.ops.attention' in sys.modules)\n"
    )
    root = Path(workloads.__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.split() == ["False", "True", "True", "False"]


def test_words_that_are_no_kinds() -> None:
    assert all(AUTO not in schedules(operator, "gpu") for operator in operators("gpu"))
    for word in (AUTO, "wgma"):
        with pytest.raises(InputError, match=r"gemm has gemv, marlin, .*, triton, wgmma on gpu"):
            builder("gemm", "gpu", word)
    with pytest.raises(InputError, match="no schedule on machines of family tpu"):
        builder("sum", "tpu", "torch")


def test_an_operator_that_nobody_computes_names_those_that_are() -> None:
    op = type("Nobody", (), {"word": "nothing"})()
    with pytest.raises(InputError, match="operator nothing has no schedule on t4; available: argmax, attention, att"):
        chooser(op, load_arch("t4"))
    assert chooser(Gemm(m=1, n=1, k=1), load_arch("tpu-v1")).__module__ == "workloads.tpu.gemm"


def test_one_function_may_stand_for_several_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})

    @register("a", "gpu", "one", "two")
    def build(op: object, spec: object, config: object) -> None: ...

    assert registry._registered == {("a", "gpu", "one"): build, ("a", "gpu", "two"): build}


def test_the_page_lists_every_kind_and_no_other() -> None:
    """docs/workloads.md, tables of schedules: | family | operators | `kind`, ... |."""
    section = PAGE.read_text(encoding="utf-8").split("## Schedules\n")[1].split("\n## ")[0]
    listed: set[tuple[str, str, str]] = set()
    for family, words, kinds in re.findall(r"^\| (\w+) \| ([\w, ]+) \| (.*) \|$", section, re.MULTILINE):
        named = re.findall(r"`([\w.-]+)`", re.sub(r"\([^)]*\)", "", kinds))
        listed |= {(family, word.strip(), kind) for word in words.split(",") for kind in named}
    assert ("all", "graphs", STEPS) in listed  # of every machine, and of no operator
    listed.discard(("all", "graphs", STEPS))
    known = {(family, op, kind) for family in families() for op in operators(family) for kind in schedules(op, family)}
    assert listed == known
