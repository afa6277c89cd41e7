"""Kinds: files that tilewave has written and that somebody or some disk has changed, and environments."""

from __future__ import annotations

import contextlib
import html
import io
import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from fuzzing import samples
from fuzzing.frame import changed, changed_bytes, changed_file, changed_json, file, kind
from sim.app.study.store import ResultStore

ROOT = Path(__file__).resolve().parents[2]
_ROWS = (ROOT / "workloads" / "silicon" / "silicon.csv").read_text(encoding="utf-8").splitlines(keepends=True)
_COMPILED = next((ROOT / "tests" / "gpu" / "sass").glob("*.sass")).read_bytes()


@cache
def _store() -> bytes:
    """A store that holds a result."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with ResultStore(path) as store:
            store.put("k" * 64, {"cycles": 5})
        return path.read_bytes()


def _array() -> bytes:
    out = io.BytesIO()
    np.save(out, np.arange(64, dtype=np.int32))
    return out.getvalue()


@kind("store", _store(), change=changed_bytes)
def store(content: bytes, folder: Path) -> None:
    """A store of results: what it has for a key, and that it takes another one."""
    for name in ("store-wal", "store-shm", "store-journal"):
        (folder / name).unlink(missing_ok=True)
    with ResultStore(file(content, folder, "store")) as opened:
        opened.claim("k" * 64)
        opened.get("k" * 64)
        opened.put("n" * 64, {"cycles": 6})


@kind("rows of measurements", "".join(_ROWS[:4]), change=changed_file)
def rows(text: str, folder: Path) -> object:
    """A CSV file of measurements."""
    from workloads.silicon import read_rows

    return read_rows(file(text, folder, "rows.csv"))


@kind("array", _array(), change=changed_bytes)
def array(content: bytes, folder: Path) -> object:
    """A .npy file of a kernel's argument."""
    from workloads.compiled_arguments import ArrayArgument

    return ArrayArgument("int32", (64,), file=str(file(content, folder, "a.npy"))).content()


@kind("compiled kernel", _COMPILED[:20_000], change=changed_bytes)
def compiled(content: bytes, folder: Path) -> object:
    """A disassembly that tilewave wrote, or an ELF file that is none."""
    from sim.gpu.sass.cubin import read_compiled

    return read_compiled(str(file(content, folder, "a.sass")))


@kind("page of an earlier run", f'<pre class="document">{samples.REPORT}</pre>', change=changed_file)
def page(text: str, folder: Path) -> object:
    """A page of `run --html`."""
    from sim.app.trace.earlier import earlier

    return earlier(file(text, folder, "old.html"))


@kind("fields of a page", samples.REPORT, change=changed_json)
def page_fields(text: str, folder: Path) -> object:
    """A page of `run --html` whose report is odd, beside another one."""
    from sim.app.study.difference import between
    from sim.app.trace.earlier import earlier

    found = earlier(file(f'<pre class="document">{html.escape(text)}</pre>', folder, "old.html"))
    return between(("old", "new"), (found.report, found.report)).sections()


_NAMES = ("XDG_CACHE_HOME", "HOME", "COLUMNS", "LINES", "NO_COLOR", "TERM", "TMPDIR", "LANG", "OPENBLAS_NUM_THREADS",
          "PYTHONIOENCODING", "FORCE_COLOR", "MPLBACKEND", "SOURCE_DATE_EPOCH", "NUMBA_CACHE_DIR")  # fmt: skip


@kind("environment", *(f"{name}=80" for name in _NAMES), "HOME=/", "XDG_CACHE_HOME=/dev/null", change=changed)
def environment(text: str, folder: Path) -> int:
    """A variable of the environment, under a command that reads most of them."""
    from sim.app.cli import main
    from sim.app.study.store import default_store

    name, _, value = text.partition("=")
    try:
        before = os.environ.get(name)
        os.environ[name] = value
    except (ValueError, OSError):
        return 0  # no variable can be this
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            default_store()
            return main(["ops", "gemm"])
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
