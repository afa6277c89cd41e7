"""The direction of imports, read from the sources; docs/architecture.md states it."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("arch", "sim", "workloads")

# The first rule whose prefix fits a module says which of our modules it may import. `*` stands for one name.
RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("arch", ("arch",)),
    ("sim.api", PACKAGES),
    ("sim.cli", PACKAGES),
    ("sim.validate", PACKAGES),
    ("sim.study", PACKAGES),
    ("sim.trace", PACKAGES),
    ("sim.runners", PACKAGES),
    ("sim.report", ("arch", "sim.report")),
    ("sim.engine", ("arch", "sim.engine")),
    ("sim.memory", ("arch", "sim.engine", "sim.memory")),
    ("sim.host", ("arch", "sim.engine", "sim.host")),
    ("sim.gpu", ("arch", "sim.engine", "sim.memory", "sim.gpu")),
    ("sim.tpu", ("arch", "sim.engine", "sim.tpu")),
    ("sim.rdu", ("arch", "sim.engine", "sim.memory", "sim.link", "sim.rdu")),
    ("sim.link", ("arch", "sim.engine", "sim.link")),
    ("sim", ("arch", "sim")),
    ("workloads", ("arch", "workloads", "sim.*.program")),
)

# Who may import an optional dependency: by extra.
EXTRAS = {
    "dask": ("sim.study.executors",),
    "dev": ("sim.study.pytest_plugin",),  # imported by pytest alone
    "optimize": ("sim.study.optimize",),
    "parquet": ("sim.study.sweep",),
    "trace": ("sim.trace.perfetto",),
}

# Kernel files are njit functions over integers: no descriptions, no events of the host, no pictures.
NOT_IN_KERNELS = {"pydantic", "simpy", "yaml", "matplotlib"}


def module_name(path: Path) -> str:
    """`sim/gpu/program.py` as `sim.gpu.program`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imported(source: str, module: str, is_package: bool) -> Iterator[str]:
    """Every module that `source` names in an import, wherever it stands; `from p import m` gives p.m."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            base = base[: len(base) - node.level + is_package] if node.level else []
            parent = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{parent}.{alias.name}" for alias in node.names)


def within(module: str, prefix: str) -> bool:
    """Whether `module` is `prefix` or below it."""
    parts, pattern = module.split("."), prefix.split(".")
    return len(parts) >= len(pattern) and all(p in ("*", part) for part, p in zip(parts, pattern, strict=False))


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports of ours that the rules do not allow to `module`."""
    allowed = next(allowed for prefix, allowed in RULES if within(module, prefix))
    ours = (name for name in imported(source, module, is_package) if name.split(".")[0] in PACKAGES)
    return sorted({name for name in ours if not any(within(name, prefix) for prefix in allowed)})


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_imports_point_in_one_direction(path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), module_name(path), path.name == "__init__.py") == []


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_only_declared_dependencies_are_imported(path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {name.partition(">")[0] for name in project["dependencies"]}
    declared = declared - {"pyyaml"} | {"yaml", "pydantic_core", "llvmlite"}  # the last two come with their parents
    for extra, users in EXTRAS.items():
        if module_name(path) in users:
            declared |= {name.partition(">")[0] for name in project["optional-dependencies"][extra]}
    named = imported(path.read_text(encoding="utf-8"), module_name(path), path.name == "__init__.py")
    foreign = {name.split(".")[0] for name in named} - set(PACKAGES) - set(sys.stdlib_module_names)
    assert foreign <= declared
    if path.name == "kernel.py":
        assert not foreign & NOT_IN_KERNELS


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("arch.gpu", "import sim.engine", ["sim.engine"]),
        ("sim.gpu.model", "def f():\n    from workloads.ops import Gemm", ["workloads.ops.Gemm"]),
        ("sim.gpu.model", "from ..report import record", ["sim.report.record"]),
        ("sim.memory.cache", "from sim.gpu import program", ["sim.gpu.program"]),
        ("workloads.gpu.gemm", "from sim.gpu.kernel import advance", ["sim.gpu.kernel.advance"]),
        ("workloads.gpu.gemm", "from sim.gpu.program import Kernel\nfrom arch.gpu import GpuSpec", []),
        ("sim.api", "from workloads.parse import parse", []),
    ],
)
def test_the_rules_catch_what_they_should(module: str, source: str, found: list[str]) -> None:
    assert violations(source, module) == found
