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
# What lies above `workloads` is in `sim.app`, which nothing else imports but the lazy names of `sim` itself.
ENGINES = ("sim.engine", "sim.memory", "sim.gpu", "sim.tpu", "sim.rdu", "sim.link", "sim.host", "sim.gemmini")
RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("arch", ("arch",)),
    ("sim.app.report", ("arch", "sim.app.report")),
    ("sim.app", ("arch", "workloads", "sim.app", *ENGINES)),
    ("sim.engine", ("arch", "sim.engine")),
    ("sim.memory", ("arch", "sim.engine", "sim.memory")),
    ("sim.host", ("arch", "sim.engine", "sim.host")),
    ("sim.gpu", ("arch", "sim.engine", "sim.memory", "sim.gpu")),
    ("sim.tpu", ("arch", "sim.engine", "sim.memory", "sim.tpu")),
    ("sim.rdu", ("arch", "sim.engine", "sim.memory", "sim.link", "sim.rdu")),
    ("sim.link", ("arch", "sim.engine", "sim.link")),
    ("sim.gemmini", ("arch", "sim.engine", "sim.memory", "sim.gemmini")),
    ("sim", ("sim.app",)),
    (
        "workloads",
        (
            *("arch", "workloads", "sim.gpu.language", "sim.gpu.sass"),
            *("sim.tpu.program", "sim.rdu.program", "sim.gemmini.program"),
        ),
    ),
)

# Who may import an optional dependency: by extra.
EXTRAS = {
    "accelsim": ("sim.gpu.sass.trace_files",),
    "dask": ("sim.app.study.executors",),
    "dev": ("sim.app.study.pytest_plugin",),  # imported by pytest alone
    "onnx": ("workloads.networks.onnx_model",),
    "optimize": ("sim.app.study.optimize",),
    "parquet": ("sim.app.study.sweep",),
    "torch": ("workloads.graphs.torch_graph",),
    "trace": ("sim.app.trace.perfetto",),
    "triton": ("workloads.triton_kernels", "workloads.triton_reference"),
}

# Kernel files are njit functions over integers: no descriptions, no events of the host, no pictures.
NOT_IN_KERNELS = {"pydantic", "simpy", "yaml", "matplotlib"}


def module_name(path: Path) -> str:
    """`sim/gpu/engine/loop.py` as `sim.gpu.engine.loop`."""
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
        ("sim.gpu.model", "from ..app.report import record", ["sim.app.report.record"]),
        ("sim.memory.cache", "from sim.gpu.language import program", ["sim.gpu.language.program"]),
        ("workloads.gpu.gemm", "from sim.gpu.engine.loop import advance", ["sim.gpu.engine.loop.advance"]),
        ("workloads.gpu.gemm", "from sim.gpu.language import Kernel\nfrom arch.gpu import GpuSpec", []),
        ("sim.app.run", "from workloads.parse import parse", []),
    ],
)
def test_the_rules_catch_what_they_should(module: str, source: str, found: list[str]) -> None:
    assert violations(source, module) == found


def folders() -> dict[str, set[str]]:
    """By folder, the other folders whose modules its own import when they are loaded or run."""
    modules = {module_name(path): path for path in sources()}
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        here = found.setdefault(".".join(path.relative_to(ROOT).parent.parts), set())
        names = imported(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
        homes = (name if name in modules else name.rpartition(".")[0] for name in names)
        here |= {".".join(modules[home].relative_to(ROOT).parent.parts) for home in homes if home in modules}
    return {name: others - {name} for name, others in found.items()}


class _WhatRuns(ast.NodeTransformer):
    """Leaves out what is imported for type checkers alone."""

    def visit_If(self, node: ast.If) -> ast.AST:
        return node if ast.unparse(node.test) != "TYPE_CHECKING" else ast.Pass()


def files() -> dict[str, set[str]]:
    """By module, the others that it imports when it is loaded or, within a function, when that runs."""
    modules = {module_name(path): path for path in sources()}
    found = {}
    for module, path in modules.items():
        source = ast.unparse(_WhatRuns().visit(ast.parse(path.read_text(encoding="utf-8"))))
        names = imported(source, module, path.name == "__init__.py")
        found[module] = {name if name in modules else name.rpartition(".")[0] for name in names} & set(modules)
    return {name: others - {name} for name, others in found.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The folders or files of a circle, [] if there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        if name in done:
            return []
        found = next((c for other in sorted(graph.get(name, ())) if (c := visit(other, [*path, name]))), [])
        done.add(name)
        return found

    return next((c for name in sorted(graph) if (c := visit(name, []))), [])


def test_folders_have_no_circles() -> None:
    assert circle(folders()) == []


def test_files_have_no_circles() -> None:
    """An import within a function counts: it hides a circle, and does not undo it."""
    assert circle(files()) == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
