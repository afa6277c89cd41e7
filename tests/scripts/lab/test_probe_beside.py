"""The probe of wgmma beside bulk loads and arithmetic: its source for every width, and refusals in one line."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "lab" / "probe_beside.py"


def load() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("probe_beside", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


probe = load()


@pytest.mark.parametrize(("n", "operands", "threads"), probe.KINDS)
def test_a_kernel_issues_four_products_of_its_width(n: int, operands: str, threads: int) -> None:
    text = probe.kernel_source(n, operands, threads)
    products = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16[^{]*\{([^}]*)\}", text)
    assert [int(width) for width, _ in products] == [n] * 4
    assert all(len(registers.split(",")) == n // 2 for _, registers in products)
    assert f"beside_{n}_{operands}_{threads}(" in text
    assert text.count(f"case {len(probe.BESIDE) - 1}:") == 1
    assert f"float d[{n // 2}]" in text


def test_the_source_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["--source"]) == 0
    assert capsys.readouterr().out.count("__global__") == len(probe.KINDS)


def test_without_cupy_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert probe.main([]) == 2
    error = capsys.readouterr().err
    assert "CuPy and a GPU are needed" in error
    assert error.count("\n") == 1
