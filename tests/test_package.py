"""The package as people get it: the wheel outside the checkout, and a command line that starts light."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from scripts.lab.data import LAB
from scripts.wheel import build, source_tree

ROOT = Path(__file__).resolve().parents[1]

HEAVY = ("jinja2", "rich", "tomlkit", "numpy", "numba", "llvmlite", "matplotlib", "simpy", "pydantic", "yaml")

NOT_OF_A_PRODUCT = (
    *("arch.tpu", "arch.rdu", "arch.gemmini", "sim.tpu", "sim.rdu", "sim.gemmini", "sim.gpu.check", "sim.gpu.sass"),
    *("sim.app.families.network", "sim.app.families.gpu.trace", "workloads.gpu.conv", "workloads.gpu.attention"),
    *("workloads.ops.attention", "workloads.ops.contractions", "workloads.networks", "workloads.silicon"),
    *("jinja2", "matplotlib"),
)
"""What other operators, families and commands need."""


def run(*command: str | Path, cwd: Path) -> str:
    """Output of a command that must succeed, run where neither PYTHONPATH nor the checkout is seen."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that the checkout stays as it is."""
    copy = tmp_path_factory.mktemp("source")
    source_tree(copy)
    code = copy / "sim" / "ready" / "kernels-some"
    code.mkdir(parents=True)
    (code / "advance.nbc").write_bytes(b"machine code")
    return build(copy, tmp_path_factory.mktemp("dist"))


def test_wheel_carries_data_types_and_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    data = {
        path.relative_to(ROOT).as_posix()
        for package in ("arch", "sim", "workloads")
        for path in (ROOT / package).rglob("*")
        if (path.suffix in (".yaml", ".csv", ".json", ".html", ".css", ".md", ".py") or path.name == "py.typed")
        and path.parent != LAB
    }
    assert data - names == set()
    assert "sim/ready/kernels-some/advance.nbc" in names  # as `scripts/wheel` puts it there
    for folder in {Path(name).parent for name in data if name.endswith((".yaml", ".csv"))}:
        assert f"{folder.as_posix()}/README.md" in names, f"{folder} holds data that nothing explains"
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests", "scripts", "docs")) or "/lab/" in name for name in names)


@pytest.mark.slow
def test_installed_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    # Dependencies are borrowed from the environment of the tests: nothing is downloaded.
    inside = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (inside / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    pip = (sys.executable, "-m", "pip", "--quiet", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)

    modules = run(python, "-c", "import arch, sim, workloads; print(arch.__file__, sim.__file__)", cwd=tmp_path)
    assert all(Path(place).is_relative_to(inside) for place in modules.split())
    assert "h100-sxm" in run(environment / "bin" / "tilewave", "archs", cwd=tmp_path)
    assert run(environment / "bin" / "python", "-m", "tilewave", "--version", cwd=tmp_path).startswith("tilewave ")


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = "\n".join(
        (
            "import contextlib, io, sys",
            "sys.argv = ['tilewave', '--help']",
            "from sim.app.cli import main",
            "text = io.StringIO()",
            "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(text): main()",
            "assert 'validate' in text.getvalue()",
            f"print(*[name for name in {HEAVY!r} if name in sys.modules])",
        )
    )
    assert run(sys.executable, "-c", code, cwd=ROOT).split() == []


def test_a_product_on_a_gpu_imports_what_it_needs_alone() -> None:
    """And leaves the collection of garbage and the environment as they were."""
    code = "\n".join(
        (
            "import contextlib, gc, io, os, sys",
            "from sim.app.cli import main",
            "words, text, before = 'run gemm m=64 n=64 k=64 --arch h100-sxm'.split(), io.StringIO(), dict(os.environ)",
            "with contextlib.redirect_stdout(text): assert main(words) == 0",
            "assert 'gemm' in text.getvalue() and gc.isenabled() and gc.get_freeze_count() and before == os.environ",
            "frozen = gc.get_freeze_count()",
            "with contextlib.redirect_stdout(text): assert main(words) == 0",
            "assert gc.isenabled() and gc.get_freeze_count() <= frozen  # once a process",
            f"print(*[name for name in {NOT_OF_A_PRODUCT!r} if name in sys.modules])",
        )
    )
    assert run(sys.executable, "-c", code, cwd=ROOT).split() == []
