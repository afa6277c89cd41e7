"""The jit decorator: fresh results after edits, no allocation, foreign functions untouched, every mode."""

import contextlib
import operator
import os
import pickle
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import config, types
from numba.core.caching import NullCache
from numba.core.errors import NumbaError

from arch.errors import InputError
from sim.engine import borrowed, jit

REPOSITORY = Path(jit.__file__).resolve().parents[2]
jitted_only = pytest.mark.skipif(bool(getattr(config, "DISABLE_JIT", 0)), reason="needs compiled code")


def run_python(code: str, root: Path, **environment: str) -> str:
    """Standard output of a fresh interpreter that imports from ``root``."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    variables.update(PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1", **environment)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=variables, cwd=root, capture_output=True, text=True, check=True)
    sys.stderr.write(done.stderr)
    return done.stdout.strip()


def compiled_anew(function: Any) -> Any:
    """A kernel that no cache holds: its compile is what a test looks at."""
    compiled: Any = jit.kernel(function)
    compiled._cache = NullCache()
    return compiled


def small_install(folder: Path) -> Path:
    """A copy of the package that holds the decorator and one component with a helper in another file."""
    engine = folder / "sim" / "engine"
    shutil.copytree(REPOSITORY / "sim" / "engine", engine, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "sim" / "__init__.py").write_text("")
    (folder / "arch").mkdir()
    (folder / "arch" / "__init__.py").write_text("")
    for name in ("errors.py", "extensions.py", "printable.py"):
        shutil.copy(REPOSITORY / "arch" / name, folder / "arch")
    part = folder / "sim" / "part"
    part.mkdir()
    (part / "__init__.py").write_text("")
    (part / "helper.py").write_text("from sim.engine.jit import kernel\n\n@kernel\ndef step(x):\n    return x + 1\n")
    (part / "kernel.py").write_text(
        "from sim.engine.jit import kernel\nfrom sim.part.helper import step\n\n"
        "@kernel\ndef run(x):\n    return step(x) * 10\n"
    )
    return folder


RUN = "from sim.part.kernel import run; print(run(1))"
DIRECTORY = (
    "import sim.part.kernel as k; from pathlib import Path; from sim.engine.jit import cache_directory; "
    "print(cache_directory(Path(k.__file__)))"
)
HITS = "from sim.part.kernel import run; run(1); print(sum(run.stats.cache_hits.values()))"


def test_sources_are_what_a_file_imports_over_all_steps() -> None:
    sources = {str(path.relative_to(REPOSITORY)) for path in jit.kernel_sources(REPOSITORY / "sim/gpu/engine/loop.py")}
    assert {
        "sim/gpu/engine/loop.py",
        "sim/gpu/units/tensor.py",
        "sim/gpu/lower/tables.py",
        "sim/memory/dram_kernel.py",
        "sim/engine/jit.py",
    } <= sources
    assert not {"sim/gpu/lower/kernel.py", "sim/gpu/language/program.py", "sim/app/run.py"} & sources


def test_multi_line_and_module_imports_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "PACKAGE_ROOT", tmp_path / "sim")
    (tmp_path / "sim" / "part").mkdir(parents=True)
    for name in ("a", "b", "c", "d", "unused"):
        (tmp_path / "sim" / "part" / f"{name}.py").write_text("")
    main = tmp_path / "sim" / "part" / "kernel.py"
    main.write_text("import sim.part.a\nfrom sim.part import (\n    b,\n    c as other,\n)\nfrom sim.part.d import X\n")
    assert {path.stem for path in jit.kernel_sources(main)} == {"kernel", "a", "b", "c", "d"}


def test_key_follows_the_sources(tmp_path: Path) -> None:
    path = tmp_path / "helper.py"
    path.write_text("x = 1\n")
    before = jit.cache_key([path])
    path.write_text("x = 2\n")
    assert jit.cache_key([path]) != before


def test_key_follows_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = jit.cache_key([])
    monkeypatch.setattr(config, "BOUNDSCHECK", 0 if getattr(config, "BOUNDSCHECK", 0) else 1)
    assert jit.cache_key([]) != before


def test_edited_helper_gives_the_new_result(tmp_path: Path) -> None:
    root = small_install(tmp_path)
    assert run_python(RUN, root) == "20"
    assert run_python(HITS, root) == "1"
    helper = root / "sim" / "part" / "helper.py"
    helper.write_text(helper.read_text().replace("x + 1", "x + 2"))
    assert run_python(RUN, root) == "30"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code is made for x86-64 alone")
@jitted_only
def test_machine_code_that_came_with_the_package_is_taken_for_the_same_sources_and_versions(tmp_path: Path) -> None:
    root = small_install(tmp_path)
    made = {"NUMBA_CPU_NAME": jit.LEVEL, "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path / "made")}
    assert run_python(RUN, root, **made) == "20"
    shutil.copytree(tmp_path / "made" / "tilewave", root / "sim" / "ready")
    assert run_python(HITS, root, NUMBA_CACHE_DIR=str(tmp_path / "own")) == "1"
    assert not list((tmp_path / "own").rglob("*.nbc"))
    helper = root / "sim" / "part" / "helper.py"
    helper.write_text(helper.read_text().replace("x + 1", "x + 2"))
    assert run_python(RUN, root, NUMBA_CACHE_DIR=str(tmp_path / "own")) == "30"
    assert list((tmp_path / "own").rglob("*.nbc"))


def test_an_engine_is_kept_as_machine_code_alone(tmp_path: Path) -> None:
    """A kernel that is announced has no caller but Python: numba finds its names, and nothing to make a caller of."""

    def kept(decorator: str, folder: Path) -> int:
        root = small_install(folder)
        kernel = root / "sim" / "part" / "kernel.py"
        kernel.write_text(kernel.read_text().replace("@kernel\n", decorator))
        assert run_python(RUN, root) == "20"
        assert run_python(HITS, root) == "1"
        assert run_python(RUN, root) == "20"
        (file,) = root.glob("sim/__pycache__/tilewave/*/run-*.nbc")
        return file.stat().st_size

    folders = tmp_path / "whole", tmp_path / "alone"
    for folder in folders:
        folder.mkdir()
    assert kept('@kernel(announce="compiling")\n', folders[1]) < kept("@kernel\n", folders[0])


def test_bounds_check_and_disabled_jit_run_from_the_same_install(tmp_path: Path) -> None:
    root = small_install(tmp_path)
    assert run_python(RUN, root, NUMBA_DISABLE_JIT="1") == "20"
    plain, checked = run_python(DIRECTORY, root), run_python(DIRECTORY, root, NUMBA_BOUNDSCHECK="1")
    assert plain != checked
    assert run_python(RUN, root, NUMBA_BOUNDSCHECK="1") == "20"


@jitted_only
def test_indices_count_from_the_start(tmp_path: Path) -> None:
    root = small_install(tmp_path)
    (root / "sim" / "part" / "kernel.py").write_text(
        "from sim.engine.jit import kernel\n\n@kernel\ndef run(x, i):\n    return x[i]\n"
    )
    code = """
import numba, numpy
from sim.part.kernel import run
values = numpy.arange(8)
print(run(values[4:], -1), numba.njit(lambda x, i: x[i])(values[4:], -1))
"""
    assert run_python(code, root) == "3 7"  # a foreign function counts from the end, as Python does
    refused = """
import numpy
from sim.part.kernel import run
try:
    run(numpy.arange(8), -1)
except IndexError:
    print("refused")
"""
    assert run_python(refused, root, NUMBA_BOUNDSCHECK="1") == "refused"


def test_foreign_cached_function_keeps_its_directory(tmp_path: Path) -> None:
    root = small_install(tmp_path)
    (root / "foreign.py").write_text("import numba\n\n@numba.njit(cache=True)\ndef g(x):\n    return x + 5\n")
    code = (
        "import os; before = dict(os.environ); import sim.part.kernel, foreign; foreign.g(1)\n"
        "assert before == dict(os.environ); print(foreign.g.stats.cache_path)"
    )
    assert Path(run_python(code, root)) == root / "__pycache__"


def test_user_chosen_numba_cache_is_honoured(tmp_path: Path) -> None:
    root = small_install(tmp_path / "install")
    assert run_python(DIRECTORY, root, NUMBA_CACHE_DIR=str(tmp_path / "mine")).startswith(str(tmp_path / "mine"))


@jitted_only
def test_copies_of_one_version_share_a_cache_and_those_of_another_do_not(tmp_path: Path) -> None:
    mine = {"NUMBA_CACHE_DIR": str(tmp_path / "mine")}
    first, second = small_install(tmp_path / "first"), small_install(tmp_path / "second")
    assert run_python(RUN, first, **mine) == run_python(RUN, second, **mine) == "20"
    assert run_python(HITS, second, **mine) == "1"
    helper = second / "sim" / "part" / "helper.py"
    helper.write_text(helper.read_text() + "\n# another version\n")
    assert run_python(HITS, second, **mine) == "0"


def test_read_only_install_uses_the_user_cache_then_temporary_files(tmp_path: Path) -> None:
    root = small_install(tmp_path / "install")
    # A file where the directory should be refuses writes to everybody, the superuser included.
    (root / "sim" / "__pycache__").write_text("")
    (tmp_path / "tmp").mkdir()
    home = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}
    assert run_python(DIRECTORY, root, **home).startswith(str(tmp_path / "cache" / "tilewave"))
    assert run_python(RUN, root, **home) == "20"
    assert run_python(HITS, root, **home) == "1"
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    home["XDG_CACHE_HOME"] = str(blocked)
    assert run_python(DIRECTORY, root, **home).startswith(str(tmp_path / "tmp"))
    assert run_python(RUN, root, **home) == "20"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX permissions")
def test_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    assert jit.usable_directory(tmp_path / "a", "k") is not None
    for mode in (0o777, 0o770):
        (tmp_path / "a").chmod(mode)
        assert jit.usable_directory(tmp_path / "a", "k") is None
    (tmp_path / "a").chmod(0o700)
    (tmp_path / "a" / "k").chmod(0o720)
    assert jit.usable_directory(tmp_path / "a", "k") is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX permissions")
def test_directory_is_the_users_alone_whatever_the_umask_and_never_a_link(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        path = jit.usable_directory(tmp_path / "cache" / "tilewave", "k")
    finally:
        os.umask(before)
    assert path is not None
    assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    (tmp_path / "link").symlink_to(tmp_path / "cache" / "tilewave")
    assert jit.usable_directory(tmp_path / "link", "k") is None
    (tmp_path / "real").mkdir()
    (tmp_path / "cache" / "tilewave" / "l").symlink_to(tmp_path / "real")
    assert jit.usable_directory(tmp_path / "cache" / "tilewave", "l") is None


def test_prune_removes_only_old_cache_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_KEEP_COUNT", 16)
    now_s = 1_000_000_000.0
    ages_s = {f"kernels-{i}": i * 60.0 for i in range(12)} | {f"kernels-busy{i}": 3000.0 for i in range(8)}
    ages_s |= {"kernels-week": 8 * 86400.0, "kernels-day": 86400.0, "kernels-mine": 9 * 86400.0, "other": 9 * 86400.0}
    for name, age_s in ages_s.items():
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (now_s - age_s, now_s - age_s))
    jit.prune(tmp_path, keep="kernels-mine", now_s=now_s)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == set(ages_s) - {"kernels-week", "kernels-day"}


@pytest.mark.parametrize("damage", ["nothing left", "a bit flipped"])
def test_damaged_cache_file_costs_a_compile_only(tmp_path: Path, damage: str) -> None:
    root = small_install(tmp_path)
    run_python(RUN, root)
    files = list(Path(run_python(DIRECTORY, root)).iterdir())
    assert files
    for path in files:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 16
        path.write_bytes(content if damage == "a bit flipped" else b"")
    assert run_python(RUN, root) == "20"
    assert run_python(HITS, root) == "1"


def test_every_bit_of_a_cache_file_is_covered(tmp_path: Path) -> None:
    def kept() -> Any:
        return jit._CheckedFiles(str(tmp_path), "run", "stamp").load("key")

    jit._CheckedFiles(str(tmp_path), "run", "stamp").save("key", ("machine code", 7))
    assert kept() == ("machine code", 7)
    assert jit._CheckedFiles(str(tmp_path), "run", "later").load("key") is None
    paths = sorted(tmp_path.iterdir())
    assert [path.suffix for path in paths] == [".nbc", ".nbi"]
    for path in paths:
        content = path.read_bytes()
        for bit in range(8 * len(content)):
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            found: Any = "damaged"
            with contextlib.suppress(pickle.UnpicklingError):
                found = kept()
            assert found == ("damaged" if path.suffix == ".nbc" else None)
        path.write_bytes(content)
    paths[0].write_bytes(paths[1].read_bytes())  # whole, but another's
    with pytest.raises(pickle.UnpicklingError):
        kept()


@jitted_only
def test_what_is_not_in_the_cache_is_announced_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = small_install(tmp_path)
    (root / "sim" / "part" / "slow.py").write_text(
        "from sim.engine.jit import kernel\n\n"
        "@kernel(announce='compiling, once for each type')\ndef run(x):\n    return x * 10\n"
    )
    words = []
    for number in ("1", "2", "1.5"):
        run_python(f"from sim.part.slow import run; print(run({number}))", root)
        words.append(capfd.readouterr().err)
    said = "tilewave: compiling, once for each type\n"
    assert words == [said, "", said]


@pytest.mark.parametrize("part", borrowed.PRIVATE, ids=lambda part: part.name)
def test_a_numba_without_a_private_part_is_refused_in_one_line(
    part: borrowed.Private, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = part._replace(name=f"{part.name}_of_another_version")
    with pytest.raises(InputError, match=re.escape(f"has no {other.module}.{other.name}")) as raised:
        borrowed.check_numba([part, other])
    assert "\n" not in str(raised.value)
    assert f"install 'numba{borrowed.NUMBA_VERSIONS}'" in str(raised.value)


@pytest.mark.parametrize("part", ["core.codegen.JITCodeLibrary._finalized", "np.arrayobj.fix_integer_index"])
def test_the_command_says_what_numba_lacks(part: str) -> None:
    code = f"""
import functools, sys, numba.core.codegen, numba.np.arrayobj
*path, last = {part!r}.split(".")
owner = functools.reduce(getattr, path, numba)
for place in getattr(owner, "__mro__", (owner,)):
    if last in vars(place):
        delattr(place, last)
from sim.app.cli import main
sys.exit(main(["run", "gemm", "m=8", "n=8", "k=8", "--arch", "t4"]) != 2)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"tilewave: numba {numba.__version__} has no numba.{part}, which here is ")


def test_the_range_of_numba_is_that_of_the_package() -> None:
    wanted = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"numba{borrowed.NUMBA_VERSIONS}" in wanted


@jitted_only
def test_allocation_in_a_kernel_is_a_compile_error() -> None:
    @jit.kernel
    def allocates(n):  # type: ignore[no-untyped-def]
        return np.zeros(n)[0]

    with pytest.raises(NumbaError, match="returning of array"):
        allocates(3)


@jitted_only
def test_operators_of_equal_types_are_resolved_once_and_only_while_a_kernel_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolved = Counter[Any]()
    original = types.BaseFunction.get_call_type

    def count(function: Any, context: Any, args: Any, keywords: Any) -> Any:
        resolved[function.typing_key, tuple(args)] += 1
        return original(function, context, args, keywords)

    monkeypatch.setattr(types.BaseFunction, "get_call_type", count)

    def polynomial(x: Any) -> Any:
        return x + (x + (x + (x + x) * x) * x) * x

    compiled = compiled_anew(polynomial)
    two = np.int64(2)
    assert compiled(two) == polynomial(two)
    assert compiled(2.5) == polynomial(2.5)
    sums = {args: count for (key, args), count in resolved.items() if key is operator.add}
    assert sums == {(types.int64, types.int64): 1, (types.float64, types.float64): 1}
    assert types.BaseFunction.get_call_type is count
    with pytest.raises(NumbaError):
        jit.kernel(lambda x: x + undefined)(two)  # type: ignore[name-defined]  # noqa: F821
    assert types.BaseFunction.get_call_type is count


@jitted_only
def test_kernels_run_without_reference_counting() -> None:
    def pick(values, i):  # type: ignore[no-untyped-def]
        if values[i] > 3:
            return values[i]
        return values[0]

    branchy = compiled_anew(pick)
    assert branchy(np.arange(8), 5) == 5
    assert "NRT_incref" not in next(iter(branchy.inspect_llvm().values()))
