"""The pytest plugin, run on small projects of its own."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

# Runs in this process forget what they import: numpy allows that once, and a program is one of the language's.
import sim.app.run
import sim.gpu.language  # noqa: F401

pytest_plugins = ["pytester"]

TESTS = """
from workloads.ops import Gemm

def test_one(cycles):
    report = cycles.check(Gemm(m=64, n=64, k=64, dtype="fp16"), "t4")
    assert report.cycles > 0

def test_two(cycles):
    cycles.check("gemm m=64 n=64 k=64 dtype=fp16", "v100-sxm2", l2="warm")
    cycles.check("gemm m=64 n=64 k=64 dtype=fp16", "t4", set=["sm.count=20"], name="fewer SMs", tolerance=0.5)
"""


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    # The entry point, where the package is installed, would bring the plugin a second time.
    return pytester.runpytest_inprocess(
        "-p", "no:tilewave", "-p", "sim.app.study.pytest_plugin", "-p", "no:xdist", "-p", "no:cacheprovider", *words
    )


@pytest.fixture
def lock(pytester: pytest.Pytester) -> Path:
    pytester.makepyfile(test_kernels=TESTS)
    return pytester.path / "cycles.lock"


def test_record_compare_and_accept(pytester: pytest.Pytester, lock: Path) -> None:
    result = run(pytester)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*no record of 'test_kernels::test_one'; pytest --cycles-update makes it"])
    run(pytester, "--cycles-update").assert_outcomes(passed=2)
    first = lock.read_bytes()
    assert list(tomllib.loads(first.decode())["case"]) == [
        "test_kernels::test_one",
        "test_kernels::test_two",
        "test_kernels::test_two fewer SMs",
    ]
    run(pytester).assert_outcomes(passed=2)
    run(pytester, "--cycles-update").assert_outcomes(passed=2)
    assert lock.read_bytes() == first

    cycles = tomllib.loads(first.decode())["case"]["test_kernels::test_one"]["cycles"]
    lock.write_text(first.decode().replace(f"cycles = {cycles}\n", "cycles = 9000\n"))
    result = run(pytester)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "test_kernels::test_one, gemm m=64 n=64 k=64 dtype=fp16 on t4, differs from *cycles.lock",
            f"*cycles*9,000*{cycles:,}*%",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    run(pytester, "--cycles-update").assert_outcomes(passed=2)
    assert lock.read_bytes() == first


def test_it_is_an_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"tilewave": "sim.app.study.pytest_plugin"}


def test_files_lie_beside_the_test(pytester: pytest.Pytester) -> None:
    """A program of one's own and a machine file, in a run that was started in the folder above."""
    folder = pytester.mkdir("tests")
    (folder / "own.py").write_text(
        "from sim.gpu.language import KernelBuilder, Program\n\n\n"
        "def idle(count: int) -> Program:\n"
        '    kernel = KernelBuilder("idle", grid=(1, 1, 1))\n'
        '    with kernel.role("all", warps=1, registers=16) as r:\n'
        "        with r.loop('i', count):\n            r.bar_sync(0, 1)\n"
        '    return Program("idle", (), (kernel.build(),), "own")\n'
    )
    (folder / "mine.yaml").write_text("base: t4\nsm: {count: 20}\n")
    (folder / "test_own.py").write_text('def test_own(cycles):\n    cycles.check("own.py:idle count=4", "mine.yaml")\n')
    run(pytester, "--cycles-update").assert_outcomes(passed=1)
    assert (folder / "cycles.lock").is_file()
    run(pytester).assert_outcomes(passed=1)
