"""The HTML report: complete, valid, without network, drawn by a browser where there is one."""

from __future__ import annotations

import base64
import json
import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sim.app.cli import main

WORK = ("gemm", "m=128", "n=128", "k=128", "dtype=fp16", "--arch", "t4")
VOID = {"meta", "img", "br", "hr", "input", "link"}


class Reader(HTMLParser):
    """Checks that elements nest, and gathers what is there."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert main(["run", *WORK, "--html", str(path)]) == 0
    return path


def test_structure(page: Path) -> None:
    reader = Reader(page.read_text(encoding="utf-8"))
    assert reader.open == []
    text = " ".join(reader.text)
    for words in (
        "What bounds it",
        "Speed of light",
        "Stall stack",
        "Memory chart",
        "Timeline",
        "sub-core 0",
        "schema",
    ):
        assert words in text
    assert "dram.bandwidth" in text
    assert "####" not in text
    assert reader.tags.count("img") == 2
    assert reader.tags.count("rect") > 100
    assert "script" not in reader.tags


def test_it_needs_no_network(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert all(link.startswith("data:") for link in Reader(text).links)
    assert not re.search(r"@import|url\(", text)
    for picture in re.findall(r"base64,([A-Za-z0-9+/=]+)", text):
        svg = base64.b64decode(picture).decode()
        assert "<svg" in svg
        assert not re.search(r"(href|src)=\"(?!#)", svg)


def test_the_same_run_gives_the_same_page(page: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.html"
    assert main(["run", *WORK, "--html", str(again)]) == 0

    def stable(path: Path) -> str:
        return re.sub(r"&#34;simulator&#34;: \{.*?\}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)

    assert stable(page) == stable(again)


def test_a_graph_has_a_timeline_of_its_host_and_of_its_longest_kernel(tmp_path: Path) -> None:
    path = tmp_path / "g.html"
    words = ("bert_layer", "batch=1", "seq=128", "hidden=128", "heads=2", "ffn=128", "--arch", "a100-sxm4-80gb")
    assert main(["run", *words, "--html", str(path)]) == 0
    reader = Reader(path.read_text(encoding="utf-8"))
    assert reader.open == []
    assert reader.tags.count("svg") == 2
    text = " ".join(reader.text)
    for part in ("host thread: calls", "stream 1", "aten::mm", "waits for the host", "tensor pipe", "long scoreboard"):
        assert part in text, part


def test_the_timeline_is_that_of_the_persons_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "gemm", "m=64", "n=256", "k=256", "dtype=int8", "--arch", "tpu-v1"]
    assert main([*words, "--listing"]) == 0
    listing = capsys.readouterr().out
    program = tmp_path / "p.tpu"
    (read,) = [line for line in listing.splitlines() if line.startswith("read_host_memory")]
    program.write_text(listing.replace(read, f"{read}\n{read}"), encoding="utf-8")
    cycles = []
    for name, more in (("a", []), ("b", ["--program", str(program)])):
        assert main([*words, *more, "--json", "--html", str(tmp_path / f"{name}.html")]) == 0
        report = json.loads(capsys.readouterr().out)
        assert f"of {report['cycles']:,}" in (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        cycles.append(report["cycles"])
    assert cycles[0] != cycles[1]
    out = str(tmp_path / "p.pftrace")
    assert main(["trace", *words[1:], "--program", str(program), "-o", out]) == 0
    assert f"cycles 0 to {cycles[1] - 1}" in capsys.readouterr().err  # the last one that has begun


def test_without_a_trace_the_page_says_why(tmp_path: Path) -> None:
    path = tmp_path / "p.html"
    assert main(["run", "copy_h2d", "bytes=1048576", "--arch", "sn40l", "--html", str(path)]) == 0
    assert "one transfer, without a timeline" in path.read_text(encoding="utf-8")


def test_wrong_names_are_refused_before_anything_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in ((str(page), "--force"), ("page.txt", ".html"), ("no/folder/p.html", "no folder")):
        assert main(["run", *WORK, "--html", name]) == 2
        assert words in capsys.readouterr().err
    assert main(["run", *WORK, "--html", str(page), "--force"]) == 0


def test_a_browser_draws_it(page: Path, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    picture = tmp_path / "page.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1300,1600", f"--screenshot={picture}"]
    done = subprocess.run([browser, *flags, page.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    assert picture.exists(), done.stderr[-2000:]
    width, height, shades = drawn(picture)
    assert (width, height) == (1300, 1600)
    assert shades > 30  # text, two pictures and a timeline, not an empty page


def drawn(path: Path) -> tuple[int, int, int]:
    """Width, height and number of different values in the rows of a PNG."""
    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    chunks, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            chunks += data[at + 8 : at + 8 + length]
        at += 12 + length
    return width, height, len(set(zlib.decompress(chunks)))
