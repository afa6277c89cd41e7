"""Outputs are there as a whole or not at all."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sim.app.cli import main
from sim.app.whole_file import replacing


def test_what_is_written_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")
    path.chmod(0o600)
    with replacing(path) as part:
        assert part.suffix == ".csv"
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")

    def interrupted() -> None:
        with replacing(path) as part:
            part.write_text("half of wh")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one_and_a_device_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    with replacing(tmp_path / "link") as part:
        part.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    with replacing(Path(os.devnull)) as part:
        part.write_text("gone")
    assert not Path(os.devnull).is_file()


def _small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def test_a_full_disk_leaves_no_part_of_a_page(tmp_path: Path) -> None:
    """Files end at 4 KiB, as on a disk that is full then; Python, which cuts byte code without a word, writes none."""
    command = [sys.executable, "-B", "-c", "import sys; from sim.app.cli import main; sys.exit(main())"]
    words = ["run", "gemm", "m=64", "n=64", "k=64", "--arch", "t4", "--html", str(tmp_path / "page.html")]
    done = subprocess.run([*command, *words], capture_output=True, text=True, preexec_fn=_small_files, check=False)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tilewave: --html")]
    assert line.endswith("page.html: cannot be written: File too large")
    assert list(tmp_path.iterdir()) == []


def test_a_study_without_a_place_for_results_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("no folder")
    store = str(tmp_path / "file" / "results.sqlite")
    sweep = ["sweep", "gemm", "m=64", "n=64", "k=64", "--arch", "t4", "--vary", "m=64,128", "--workers", "1"]
    assert main([*sweep, "--store", store]) == 0
    said = capsys.readouterr()
    assert "128" in said.out
    assert f"tilewave: warning: results are not kept in {store}" in said.err
