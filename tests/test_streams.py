"""The command line where stdout is closed or nobody reads it, and where a file's place is taken by something else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.app.cli import main

GEMM = ("run", "gemm", "m=16", "n=16", "k=16", "--arch", "t4")


@pytest.mark.parametrize(
    ("words", "code"),
    [("ops >&-", 0), ("ops --json <&- >&- 2>&-", 0), ("--help | true", 0), ("--version >&-", 0),
     ("ops | head -1", 0), ("ops nothing >&- 2>&-", 2), ("archs --json | true", 0)],
)  # fmt: skip
def test_where_nobody_reads_it_ends_in_silence(words: str, code: int) -> None:
    shell = f"set -o pipefail; {sys.executable} -m sim.app.cli {words}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (code, "")


def test_a_letter_that_stdout_lacks_is_an_escape() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = (sys.executable, "-m", "sim.app.cli", "archs", "é")
    done = subprocess.run(command, capture_output=True, env=environment, timeout=100, check=False)
    assert done.returncode == 2
    assert rb"\xe9" in done.stderr


def test_the_next_file_does_not_take_the_place_of_a_closed_stdout(tmp_path: Path) -> None:
    """SQLite's file would: what is printed then goes into it."""
    store = tmp_path / "store"
    sweep = f"sweep {' '.join(GEMM[1:])} --vary m=16 --no-tune --workers 1 --store {store}"
    shell = f"{sys.executable} -m sim.app.cli {sweep} >&-; {sys.executable} -m sim.app.cli {sweep}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 results were in the store" in done.stdout


@pytest.mark.parametrize("option", ["--html", "--plot"])
def test_a_link_to_nothing_is_no_place_for_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    suffix = {"--html": "html", "--plot": "png"}[option]
    link = tmp_path / f"link.{suffix}"
    link.symlink_to(tmp_path / "nowhere" / f"x.{suffix}")
    assert main([*GEMM, option, str(link)]) == 2
    assert f"there is no folder {tmp_path / 'nowhere'}" in capsys.readouterr().err
    link.unlink()
    link.symlink_to(tmp_path / f"later.{suffix}")
    assert main([*GEMM, option, str(link)]) == 2
    assert "the file exists; --force overwrites it" in capsys.readouterr().err
    assert main([*GEMM, option, str(link), "--force"]) == 0
    assert link.is_symlink()
    assert (tmp_path / f"later.{suffix}").stat().st_size > 1000


def test_a_folder_is_no_place_for_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.html").mkdir()
    assert main([*GEMM, "--html", str(tmp_path / "x.html"), "--force"]) == 2
    assert "x.html: is a folder; name a file" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["a\udcff=1", "\ud800", "a\0b"])
@pytest.mark.parametrize("words", ["optimize gemm m=1 --arch t4 --define", "ops", "history", "run gemm --schedule"])
def test_a_word_that_is_no_text_is_refused(words: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), word]) == 2
    assert "is no text in UTF-8" in capsys.readouterr().err
