"""The HTML report: complete, valid, without network, drawn by a browser where there is one."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from arch.load import load_arch
from sim.app.cli import main

WORK = ("gemm", "m=128", "n=128", "k=128", "dtype=fp16", "--arch", "t4")
VOID = {"meta", "img", "source", "br", "hr", "input", "link"}


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
    assert reader.tags.count("img") == 0
    assert reader.tags.count("path") > 20
    assert len(page.read_bytes()) < 600_000
    assert reader.tags.count("canvas") == 1 + 3  # tracks, and maps of SMs, slices and channels
    assert reader.tags.count("svg") == 1 + 2  # the timeline on paper, roofline and stall stack


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
    assert reader.tags.count("svg") == 2 + 1  # timelines on paper, and the stall stack: all roofs are far above
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


KERNEL = """
from sim.gpu.language import CTA_X, GlobalTensor, KernelBuilder, Program, RegisterTile


def copy(n: int, bytes: int = 4) -> Program:
    x, y = (GlobalTensor(name, (n, 128), "fp32", (128, 1), role) for name, role in (("x", "input"), ("y", "output")))
    kernel = KernelBuilder("copy", grid=(n, 1, 1))
    with kernel.role("warp", warps=1, registers=32) as r:
        v = RegisterTile("v", (1, 128), "fp32")
        r.ldg(v.whole, x[CTA_X, :], into="v", vector_bytes=bytes)
        r.stg(y[CTA_X, :], v.whole, vector_bytes=bytes, after=("v",))
    return Program("copy", (x, y), (kernel.build(),), "by hand", reference=lambda x: x)
"""


def data_of(path: Path) -> list[dict[str, Any]]:
    """The timelines of a page, as its script reads them."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(part) for part in re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Pages of a program of one's own, the second one beside the first."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "mine.py").write_text(KERNEL, encoding="utf-8")
    work = ["run", f"{folder / 'mine.py'}:copy", "n=8", "--arch", "t4"]
    old, new = folder / "old.html", folder / "new.html"
    assert main([*work, "--html", str(old)]) == 0
    assert main([*work[:3], "bytes=16", *work[3:], "--html", str(new), "--baseline", str(old)]) == 0
    return old, new


def test_the_script_gets_what_the_picture_shows(page: Path) -> None:
    (data,) = data_of(page)
    kinds = len(data["tracks"]), len(data["names"]), len(data["details"])
    assert all(0 <= number < most for piece in data["slices"] for number, most in zip(
        (piece[0], piece[3], piece[4]), kinds, strict=True))  # fmt: skip
    assert all(data["first"] <= begin <= end <= data["last"] for _, begin, end, *_ in data["slices"])
    drawn = page.read_text(encoding="utf-8").partition("<h2>Timeline")[2]
    assert len(data["slices"]) == drawn.count("<rect ") + len(re.findall(r"M[\d.]+ \d+h[\d.]+v13h", drawn))
    counters = {track["label"]: track["unit"] for track in data["tracks"] if track["counter"]}
    assert counters["L2 read"] == "B/cycle"
    assert len(data["colours"]) == len(data["inks"]) == len(data["names"])


def test_waits_are_linked_to_lines_of_the_program(pair: tuple[Path, Path]) -> None:
    text = pair[0].read_text(encoding="utf-8")
    (data,) = data_of(pair[0])
    places = re.findall(r'<tr data-line="(\d+)"><td>(op \d+: [^<]*, mine\.py:\d+)</td>', text)
    assert places
    assert all(data["lines"][int(number)] == line for number, line in places)
    store = next(i for i, line in enumerate(KERNEL.splitlines(), 1) if "r.stg" in line)
    row = re.search(rf"mine\.py:{store}</td>.*?</tr>", text)
    assert row
    assert "long scoreboard" in row[0]  # the store waits for what the load brings


def test_a_baseline_stands_beside_the_run(pair: tuple[Path, Path]) -> None:
    old, new = pair
    reader = Reader(new.read_text(encoding="utf-8"))
    text = " ".join(reader.text)
    assert "Beside old.html" in text
    assert "bytes=16" in text
    assert [data["slices"] for data in data_of(new)][1] == data_of(old)[0]["slices"]
    assert reader.tags.count("canvas") == 2 * (1 + 3)


@pytest.mark.parametrize(("content", "says"), [(None, "cannot be read"), ("<html></html>", "is no page of tilewave")])
def test_a_baseline_that_is_none_is_refused(
    content: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.html"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert main(["run", *WORK, "--html", str(tmp_path / "new.html"), "--baseline", str(path)]) == 2
    assert says in capsys.readouterr().err
    assert main(["run", *WORK, "--baseline", str(path)]) == 2
    assert "goes with --html" in capsys.readouterr().err


def test_counters_of_a_small_kernel_have_their_true_peaks(tmp_path: Path) -> None:
    """Its samples are all shorter than a thousandth of the run but for those in which nothing happens."""
    path = tmp_path / "small.html"
    mine = Path(__file__).parents[1] / "reference" / "turned_softmax.py"
    work = [f"{mine}:softmax", "rows=4096", "cols=32", "--arch", "a100-sxm4-80gb"]
    assert main(["run", *work, "--html", str(path)]) == 0
    (data,) = data_of(path)
    peaks = {track["label"]: peak for track, peak in zip(data["tracks"], data["peaks"], strict=True)}
    assert {name: round(peaks[name]) for name in ("L2 read", "DRAM read", "issued")} == {
        "L2 read": 4480, "DRAM read": 1446, "issued": 256,
    }  # fmt: skip


def test_charts_say_the_numbers_of_the_report(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    report = json.loads(html.unescape(re.search(r'<pre class="document">(.*?)</pre>', text, re.DOTALL)[1]))  # type: ignore[index]
    tips = [html.unescape(tip) for tip in re.findall(r'data-tip="([^"]*)"', text)]
    held = report["roofline"]["roofs"][0] if "roofline" in report else None
    assert any(tip.endswith("the lowest roof, which holds") for tip in tips), held
    states = {name: share for name, share in report["stalls"]["warps"].items() if share}
    for name, share in states.items():
        assert any(tip.startswith(f"{name.replace('_', ' ')}: {100 * share:.1f} % of ") for tip in tips), name


def test_maps_show_every_part_of_the_chip(tmp_path: Path) -> None:
    path = tmp_path / "add.html"
    assert main(["run", "add", "n=1048576", "--arch", "t4", "--html", str(path)]) == 0
    (data,) = data_of(path)
    sms, slices, channels = data["maps"]
    spec = load_arch("t4")
    assert [len(one["cells"]) for one in (sms, slices, channels)] == [40, spec.l2.slices, spec.dram.channels]
    assert all(len(row) == len(one["at"]) <= 160 for one in data["maps"] for row in one["cells"])
    assert sms["most"] <= spec.sm.max_ctas
    last = [row[-1] for row in sms["cells"]]
    assert set(last) == {"0"}  # all have gone
    assert sum(any(cell != "0" for cell in row) for row in sms["cells"]) == 40
    assert all(any(cell != "0" for cell in row) for row in (*slices["cells"], *channels["cells"]))  # a stream is spread


def test_the_listing_has_costs_and_what_was_waited_for(pair: tuple[Path, Path]) -> None:
    text = pair[0].read_text(encoding="utf-8")
    lines = [(share, html.unescape(line)) for share, line in re.findall(r"<p><b>(.*?)</b><code>(.*?)</code></p>", text)]
    (load,) = [share for share, line in lines if " ldg" in line]
    (store,) = [share for share, line in lines if " stg" in line]
    table = dict(re.findall(r'<td>op (\d): .*?</td>.*?</td><td class="number">(\d+ %)</td>', text))
    assert (load, store) == (table["0"], table["1"])
    assert 99 <= int(load.removesuffix(" %")) + int(store.removesuffix(" %")) <= 101
    assert sum("latency" in line for _, line in lines) == 2
