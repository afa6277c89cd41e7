"""The array as a person sees it: text and animation of every cycle."""

from pathlib import Path

import pytest
from PIL import Image

from arch.errors import InputError
from sim.app.cli import main
from sim.app.run import show_array

FOUR = ("--arch", "tpu-v1", "--set", "array.rows=4", "array.columns=4")
MATVEC = ("matvec", "rows=4", "cols=4")


def test_text_and_gif_of_a_vector_product(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    movie = tmp_path / "array.gif"
    assert main(["run", *MATVEC, *FOUR, "--show-array", str(movie)]) == 0
    out = capsys.readouterr().out
    assert "cycle 7: 4 of 16 cells multiply" in out
    assert "11 cycles; the 16 cells multiply in 9.1 % of them" in out
    assert f"animated in {movie}" in out
    assert "matvec rows=4 cols=4 on tpu-v1 with array.rows=4, array.columns=4\n  time" in out
    with Image.open(movie) as picture:
        assert getattr(picture, "n_frames", 1) == 11
    assert main(["run", *MATVEC, *FOUR, "--show-array", str(movie)]) == 2
    assert main(["run", *MATVEC, *FOUR, "--show-array", str(movie), "--force", "--json"]) == 0


def test_html(tmp_path: Path) -> None:
    page = tmp_path / "array.html"
    assert main(["run", "gemm", "m=2", "n=2", "k=2", *FOUR, "--show-array", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "<img" in text
    assert "http" not in text.replace("http://www.w3.org", "")  # buttons have letters, no pictures from the network
    assert text.count("<button") == 9
    assert "fa-" not in text


@pytest.mark.parametrize("dataflow", ["ws", "os", "is"])
def test_every_dataflow_shows_its_product(dataflow: str) -> None:
    figures = ["array.rows=3", "array.columns=4", f"array.dataflow={dataflow}"]
    shown = show_array("gemm m=5 n=6 k=7", "tpu-v1", set=figures)
    assert shown.macs.sum() >= 5 * 6 * 7
    assert [frame.cycle for frame in shown.frames] == list(range(len(shown.frames)))
    assert str(shown).count("cells multiply") == len(shown.frames) + 1


@pytest.mark.parametrize(
    ("workload", "machine", "figures", "says"),
    [
        ("matvec rows=4 cols=4", "tpu-v1", [], "array.rows = 256 is too large"),
        ("matvec rows=4 cols=4", "t4", [], "t4 is no systolic array"),
        ("softmax rows=4 cols=4", "tpu-v1", [], "shows gemm and matvec of int8"),
        ("gemm m=4 n=4 k=4 batch=2", "tpu-v1", [], "batch must be 1"),
        ("gemm m=900 n=4 k=4", "tpu-v1", ["array.rows=4", "array.columns=4"], "more than 500 cycles"),
    ],
)
def test_what_cannot_be_shown(workload: str, machine: str, figures: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        show_array(workload, machine, set=figures)


def test_a_changed_listing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gemm = ("gemm", "m=20", "n=8", "k=16", "out=int8", *FOUR)
    assert main(["run", *gemm, "--listing"]) == 0
    text = capsys.readouterr().out
    listing = tmp_path / "lab.txt"
    listing.write_text(text)
    assert main(["run", *gemm, "--program", str(listing), "--check"]) == 0
    assert f"The program is that of {listing}." in " ".join(capsys.readouterr().out.split())
    listing.write_text(text.replace("activate ", "activate function=relu "))
    assert main(["run", *gemm, "--program", str(listing), "--check"]) == 1
    listing.write_text(text.replace("sync waiter=matrix0 after=host_read", "nop", 1))
    assert main(["run", *gemm, "--program", str(listing)]) == 2
    assert "missing: sync waiter=matrix0 after=host_read" in capsys.readouterr().err
    listing.write_text(text.replace("activate ", "activte ", 1))
    assert main(["run", *gemm, "--program", str(listing)]) == 2
    assert "nearest: activate" in capsys.readouterr().err
    assert main(["run", *gemm, "--program", "no.txt"]) == 2
    assert main(["run", "gemm", "m=8", "n=8", "k=8", "--arch", "t4", "--program", str(listing)]) == 2


def test_names_of_files_are_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *MATVEC, *FOUR, "--show-array", str(tmp_path / "array.mp4")]) == 2
    assert main(["run", *MATVEC, *FOUR, "--show-array", str(tmp_path / "no" / "array.gif")]) == 2
    assert "no folder" in capsys.readouterr().err
