"""An operator is declared once: one of another package runs like those that ship, and each that ships has a kind."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arch import extensions
from arch.errors import InputError
from arch.load import load_arch
from sim import simulate
from sim.app.families.request import Request
from sim.app.operators import OneOperator, Operators
from sim.app.study.case import key_of
from workloads import registry
from workloads.graphs import GraphBuilder, GraphOperator
from workloads.ops import Gemm, Operator, Pointwise, operator, operator_class, operator_words
from workloads.ops.base import KINDS, REGISTRY
from workloads.parse import parse
from workloads.registry import operators

MODULE = """
from dataclasses import dataclass, replace
import numpy as np
from arch.dtypes import round_to
from workloads import registry
from workloads.ops import Operand, Operator, Pointwise, operator
from workloads.ops.base import extent, number_format, rounding


@operator("negated", kind="elementwise", example="n=4k")
@dataclass(frozen=True)
class Negated(Operator):
    \"\"\"y[i] = -x[i].\"\"\"

    n: int = extent(help="elements")
    dtype: str | None = number_format("of both")

    def with_defaults(self, dtype):
        return replace(self, dtype=self.dtype or dtype)

    @property
    def operands(self):
        return (Operand("x", (self.n,), self.dtype),)

    @property
    def results(self):
        return (Operand("y", (self.n,), self.dtype),)

    def references(self, x):
        return (round_to(-x, self.dtype),)

    @property
    def tolerance(self):
        return rounding(self.dtype)

    @property
    def shipped(self):
        return Pointwise(n=self.n, chain="neg", dtype=self.dtype)


@registry.register("negated", "gpu", "auto")
def choose(op, spec, schedule="auto"):
    return registry.chooser(op.shipped, spec)(op.shipped, spec, schedule)


@registry.register("negated", "gpu", "fused", "torch")
def build(op, spec, config):
    return registry.build(op.shipped, spec, config)
"""


@pytest.fixture
def negated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with one operator, installed for this process as pip does."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "own_negation.py"
    module.write_text(MODULE)
    metadata = tmp_path / "own_negation-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-negation\nVersion: 1.0\n")
    names = {"negated": "own_negation:Negated", "lost": "own_negation:Lost", "other": "own_negation:Negated"}
    lines = [f"{name} = {value}" for name, value in names.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[tilewave.operators]", *lines]) + "\n")
    for known in (extensions._entry_points, extensions.registered, extensions._sources):
        known.cache_clear()
    yield module
    sys.modules.pop("own_negation", None)
    REGISTRY.pop("negated", None)
    for kind in ("auto", "fused", "torch"):
        registry._registered.pop(("negated", "gpu", kind), None)
    for known in (extensions._entry_points, extensions.registered, extensions._sources):
        known.cache_clear()


def test_an_operator_of_another_package_runs_alone_in_a_graph_and_in_ops(negated: Path) -> None:
    alone = simulate("negated n=4096 dtype=fp32", "t4", check=True)
    assert alone.to_dict()["check"]["passed"]
    assert alone.cycles == simulate("neg n=4096 dtype=fp32", "t4").cycles
    assert alone.to_dict()["extensions"]["negated"]["package"] == "own-negation 1.0"

    op = parse("negated n=4096").with_defaults("fp32")
    graph = GraphBuilder("twice")
    x = graph.tensor("x", 4096, "fp32")
    found = simulate(graph.build(graph.call("second", op, graph.call("first", op, x))), "t4").to_dict()
    assert [(entry["operator"], entry["kind"]) for entry in found["profile"]] == [
        ("first", "elementwise"),
        ("second", "elementwise"),
    ]
    assert OneOperator("negated").to_dict()["examples"] == ["tilewave run negated n=4k --arch h100-sxm"]
    assert OneOperator("negated").to_dict()["schedules"] == {"gpu": ["fused", "torch"]}


def test_its_source_is_part_of_the_key_of_a_run(negated: Path) -> None:
    asked = Request("negated n=4096", load_arch("t4"))
    before = key_of(asked)
    negated.write_text(MODULE + "# changed\n")
    assert key_of(asked) != before


def test_entry_points_that_declare_nothing_are_refused(negated: Path) -> None:
    with pytest.raises(InputError, match=r"operator lost of own-negation 1.0: own_negation:Lost: AttributeError"):
        operator_class("lost")
    with pytest.raises(InputError, match=r"own_negation:Negated is not declared by @operator\(\"other\"\)"):
        operator_class("other")
    with pytest.raises(InputError, match=r"kind=contractoin: must be one of .* did you mean contraction"):
        operator("odd", kind="contractoin")


@pytest.mark.parametrize("word", [*operators("gpu"), "all_reduce", "reduce_scatter", "alltoall", "all_gather"])
def test_every_operator_has_its_kind_in_a_profile(word: str) -> None:
    """Those that GPUs run as a step of a graph. `grouped_gemm` ran to its end, and its kind was missing then."""
    found = in_graph(SMALL.get(word, operator_class(word).example), word)
    assert [entry["kind"] for entry in found["profile"]] == [operator_class(word).kind]
    assert found["cycles"] > 0


SMALL = {
    "argmax": "rows=4 cols=64",
    "attention": "batch=1 heads=1 head_dim=64 seq=64",
    "attention_backward": "batch=1 heads=1 head_dim=64 seq=128",
    "conv2d": "n=1 c=16 h=8 w=8 k=16 r=3 s=3 pad=1", "conv2d_dgrad": "n=1 c=16 h=8 w=8 k=16 r=3 s=3 pad=1",
    "conv2d_wgrad": "n=1 c=16 h=8 w=8 k=16 r=3 s=3 pad=1", "gather": "rows=64 cols=64 of=128",
    "gemm": "m=64 n=64 k=64", "grouped_gemm": "m=128 n=128 k=128 groups=2",
    "kv_write": "batch=1 seq_k=64 kv_heads=1 head_dim=64", "layernorm": "rows=64 cols=64",
    "layernorm_backward": "rows=64 cols=64", "moe": "tokens=16 hidden=128 inter=128 topk=2 experts=4",
    "pointwise": "n=4k chain=exp", "quantize": "rows=64 cols=64", "rmsnorm": "rows=64 cols=64",
    "rope": "tokens=4 heads=2 kv_heads=1 head_dim=64",
    "softmax": "rows=64 cols=64",
    "softmax_backward": "rows=64 cols=64", "sum": "n=4k", "transpose": "rows=64 cols=64",
}  # fmt: skip


def in_graph(keys: str, word: str) -> dict[str, Any]:
    """The report of a graph of one operator on an H100."""
    op = parse(f"{word} {keys}").with_defaults("bf16")
    graph = GraphBuilder("mine")
    values = [graph.tensor(f"{o.name}{i}", math.prod(o.shape), o.dtype) for i, o in enumerate(op.operands)]
    report: dict[str, Any] = simulate(graph.build(*graph.calls("it", op, *values)), "h100-sxm").to_dict()
    return report


def test_what_is_no_step_of_a_graph_is_refused_by_name() -> None:
    whole = [word for word in operator_words() if not operator_class(word).kind]
    assert {operator_class(word).kind for word in operator_words()} == {*KINDS, ""}
    assert set(whole) == {"inference", "network", "bert_layer", "llama", "onnx"}
    assert issubclass(operator_class("llama"), GraphOperator)
    with pytest.raises(InputError, match=r"graph mine, it: llama.* is no operator that can be a step of a graph"):
        GraphBuilder("mine").call("it", parse("llama"))


def test_a_class_without_the_decorator_takes_nobodys_word() -> None:
    class Mine(Gemm):
        pass

    assert REGISTRY["gemm"] is Gemm
    assert issubclass(Mine, Operator)
    assert operator_class("exp") is Pointwise
    assert len(Operators().to_dict()) == len(operator_words())
