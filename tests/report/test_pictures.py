"""Pages as a browser draws them and pictures as matplotlib does, beside those that a person has looked at.

Ten pages are drawn in one window and compared, made smaller, with tests/report/pictures; where no Chromium is installed
their tests are skipped, and say so. `pytest tests/report/test_pictures.py --pictures-update` writes them anew: look at
them before they are kept. What no tolerance allows is looked for by itself: a page that is wider than its window, a
table that is clipped, texts over each other.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from arch.load import load_arch
from sim.app.cli import main
from sim.app.report.plots import predicted_against_measured, roofline
from sim.app.report.report import Report
from sim.app.run import simulate
from sim.app.study.difference import between
from sim.app.study.digest import Digest
from sim.app.study.history import History, Record
from sim.app.study.lockfile import Entry
from sim.app.study.sensitivity import sensitivity
from sim.app.study.sweep import sweep
from sim.app.trace.earlier import earlier
from sim.app.trace.page import page

from tests.reference import fixed  # isort: skip
from tests.reference.pictures import ALIKE, faults, likeness  # isort: skip

FOLDER = Path(__file__).parent / "pictures"
LESSONS = Path(__file__).resolve().parents[2] / "scripts" / "lessons"
SMALLER = 4
"""Times by which a picture is made smaller: numbers become grey, tables, bars and colours stay."""
SECONDS = 120
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
RUNS = {
    "gpu": ("gemm m=256 n=256 k=256 dtype=bf16", "h100-sxm", "wgmma 64x64x64 stages 4"),
    "graph": ("bert_layer batch=1 seq=128 hidden=128 heads=2 ffn=128", "a100-sxm4-80gb", "auto"),
    "tpu": ("gemm m=256 n=512 k=512 dtype=int8", "tpu-v1", "tiled"),
    "rdu": ("softmax rows=256 cols=512", "sn40l", "auto"),
}
"""Small runs with a page each, whose numbers are replaced by fixed ones: it is drawing that is tested here."""
CELLS = "matvec rows=4 cols=4 --arch tpu-v1 --set array.rows=4 --set array.columns=4 --show-array"
ZOOM = """
document.querySelectorAll("tr[data-line]")[2].click();
for (let i = 0; i < 2; i++) document.querySelector(".in").click();
document.querySelector(".controls input").value = "warp";
document.querySelector(".controls input").dispatchEvent(new Event("input"));
"""
LISTEN = """
addEventListener("message", e => { document.querySelector("pre").textContent += JSON.stringify(e.data) + "\\n"; });
"""
MEASURE = """
const wide = [...document.querySelectorAll("table, img, canvas, p, h1")].filter(
  e => e.getBoundingClientRect().right > innerWidth + 1);
const hidden = [...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth + 1);
parent.postMessage({name: NAME, wide: document.documentElement.scrollWidth - innerWidth,
  clipped: [...wide, ...hidden].map(e => e.tagName + " " + e.textContent.trim().slice(0, 40))}, "*");
"""


@dataclass(frozen=True)
class View:
    """How a page is looked at. paper: as it is printed. script: runs first. last: show the end of the page."""

    page: str
    width: int
    height: int
    dark: bool = False
    paper: bool = False
    script: str = ""
    last: bool = False


VIEWS = {
    "report": View("gpu", 1300, 2300),
    "dark": View("gpu", 1300, 2300, dark=True),
    "narrow": View("gpu", 420, 2700),
    "paper": View("gpu", 700, 2700, paper=True),
    "zoomed": View("gpu", 1300, 900, script=ZOOM, last=True),
    "baseline": View("base", 1300, 1900, last=True),
    "graph": View("graph", 1300, 2700),
    "tpu": View("tpu", 1300, 1900),
    "sn40l": View("rdu", 1300, 2300),
    "cells": View("cells", 700, 800),
}


@cache
def report(name: str, slower: int = 1) -> Report:
    """A run with fixed numbers."""
    workload, machine, schedule = RUNS[name]
    return Report(fixed.record(simulate(workload, machine, schedule=schedule).record, slower))


def written(folder: Path, name: str, run: str, slower: int = 1, before: Path | None = None) -> None:
    """The page of a run with a fixed timeline, beside an earlier page if asked."""
    found, machine = report(run, slower), RUNS[run][1]
    old = earlier(before) if before else None
    compared = between((old.name, "this run"), (old.report, found.to_dict())).sections() if old else ()
    drawn = fixed.timeline(machine, found.record.machine.family, slower)
    text = page(found, load_arch(machine), lambda: drawn, old, compared)
    (folder / f"{name}.html").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all pages."""
    folder = tmp_path_factory.mktemp("pages")
    for name in RUNS:
        written(folder, name, name)
    written(folder, "base", "gpu", slower=2, before=folder / "gpu.html")
    assert main(["run", *CELLS.split(), str(folder / "cells.html")]) == 0
    return folder


@dataclass(frozen=True)
class Drawn:
    """What the browser made of the views: a picture of each, and what is wider than its window."""

    pictures: dict[str, Image.Image]
    measured: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def drawn(pages: Path) -> Drawn:
    """All views, in two windows: light and dark."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    pictures: dict[str, Image.Image] = {}
    measured: dict[str, dict[str, Any]] = {}
    for dark in (False, True):
        views = {name: view for name, view in VIEWS.items() if view.dark == dark}
        picture, said = window(browser, pages, views, dark)
        measured |= said
        left = 0
        for name, view in views.items():
            pictures[name] = picture.crop((left, 0, left + view.width, view.height))
            left += view.width
    return Drawn(pictures, measured)


def window(browser: str, pages: Path, views: dict[str, View], dark: bool) -> tuple[Image.Image, dict[str, Any]]:
    """The views beside each other in one window: its picture, and what their scripts measured."""
    frames = []
    for name, view in views.items():
        place = pages / f"view-{name}.html"
        place.write_text(prepared(name, view, (pages / f"{view.page}.html").read_text(encoding="utf-8")))
        frames.append(f'<iframe src="{place.name}" width="{view.width}" height="{view.height}"></iframe>')
    sheet = pages / f"sheet-{dark}.html"
    sheet.write_text(
        "<!doctype html><style>body{margin:0;display:flex;align-items:start}iframe{border:0;flex:none}pre{display:none}"
        f"</style><pre></pre><script>{LISTEN}</script>{''.join(frames)}"
    )
    width, height = sum(v.width for v in views.values()), max(v.height for v in views.values())
    target = pages / f"sheet-{dark}.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    flags += [f"--user-data-dir={pages / 'profile'}", f"--window-size={width},{height}", f"--screenshot={target}"]
    flags += [
        "--dump-dom",
        "--virtual-time-budget=20000",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
    ]
    done = subprocess.run(
        [browser, *flags, sheet.as_uri()], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert target.exists(), done.stderr[-2000:]
    said = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert said, done.stdout[:2000]
    found = [json.loads(line) for line in said[1].splitlines() if line]
    return Image.open(target).convert("RGB"), {entry["name"]: entry for entry in found}


def prepared(name: str, view: View, text: str) -> str:
    """A page with the letters that matplotlib ships, since machines differ in theirs, and the view's script."""
    faces = "".join(
        f"@font-face{{font-family:Shipped;font-weight:{weight};src:url({(FONTS / file).as_uri()})}}"
        for weight, file in ((400, "DejaVuSans.ttf"), (700, "DejaVuSans-Bold.ttf"))
    )
    end = "scrollTo(0, document.body.scrollHeight);" if view.last else ""
    # Canvases are drawn again when their letters have come.
    again = "document.querySelectorAll('canvas').forEach(c => { c.style.width = 'calc(100% - 1px)'; });"
    measure = MEASURE.replace("NAME", json.dumps(name))
    script = f"document.fonts.ready.then(() => {{ {view.script} {again} {end} {measure} }});"
    text = text.replace("system-ui", "Shipped").replace("</body>", f"<script>{script}</script></body>")
    text = text.replace("</head>", f"<style>{faces}</style></head>")
    return text.replace("@media print", "@media screen") if view.paper else text


@pytest.mark.parametrize("name", VIEWS)
def test_a_page_looks_as_it_did(name: str, drawn: Drawn, request: pytest.FixtureRequest) -> None:
    compared(f"page-{name}", drawn.pictures[name], request)


@pytest.mark.parametrize("name", VIEWS)
def test_nothing_is_wider_than_its_page(name: str, drawn: Drawn) -> None:
    assert drawn.measured[name] == {"name": name, "wide": 0, "clipped": []}


def compared(name: str, picture: Image.Image, request: pytest.FixtureRequest) -> None:
    """Compares a picture with the one that is kept, or keeps it."""
    small = picture.resize((picture.width // SMALLER, picture.height // SMALLER), Image.Resampling.BOX)
    kept = FOLDER / f"{name}.png"
    if request.config.getoption("--pictures-update"):
        FOLDER.mkdir(exist_ok=True)
        small.quantize(128).save(kept, optimize=True)
    expected = Image.open(kept).convert("RGB")
    assert small.size == expected.size
    found = likeness(np.asarray(small), np.asarray(expected))
    assert found >= ALIKE, f"{name}: likeness {found:.3f}; where the change is meant: --pictures-update, and look at it"


def plotted(draw: Callable[..., Any], *words: Any, **more: Any) -> Figure:
    """What a report or study draws on axes of its own."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    draw(*words, ax=figure.subplots(), **more)
    return figure


def moved() -> Figure:
    """A case whose cycles moved three times."""
    said = ("Golden cases", "Engine: waits end earlier", "Engine: a queue", "L2: misses merge")
    records = [
        Record(f"abc{i}", f"2026-0{i + 1}-01", word, Entry("t4", "gemm", "", Digest(cycles, cycles * 700, "mma")))
        for i, (cycles, word) in enumerate(zip((5000, 4600, 4650, 4300), said, strict=True))
    ]
    return plotted(History("projection", records).plot)


def scattered() -> Figure:
    times = [1.5 * 1.7**i for i in range(12)]
    points = {
        "t4 gemm fp16": [(time, time * (1.05 if i % 2 else 0.93)) for i, time in enumerate(times)],
        "t4 softmax fp32": [(time, time * (1.2 if i % 3 else 0.99)) for i, time in enumerate(times)],
    }
    return plotted(predicted_against_measured, points)


def taught() -> Figure:
    """What lessons draw: bars with values, published marks behind or inside of them, ticks that are plain numbers."""
    lesson = importlib.import_module("lesson")
    figure = Figure(figsize=(8, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    marks = {"with all": 780.0, "without one": 500.0}
    lesson.bars(left, {"with all": 761.0, "without one": 615.0, "without two": 340.0}, marks=marks, label="simulated")
    lesson.published_marks(left, marks)
    left.set(xlabel="TFLOPS")
    right.plot([1, 10, 100], [0.6, 0.75, 1.1], "o-", label="a long word that says what this line is about")
    lesson.plain_log(right)
    lesson.legend_below(figure)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "roofline": lambda: plotted(report("gpu").plot_roofline),
    "stalls": lambda: plotted(report("gpu").plot_stalls),
    "operators": lambda: plotted(report("graph").plot_profile),
    "machines": lambda: plotted(roofline, [report("gpu"), report("rdu")]),
    "history": moved,
    "accuracy": scattered,
    "lesson": taught,
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_looks_as_it_did(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(LESSONS))
    figure = FIGURES[name]()
    assert faults(figure) == []
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    compared(f"picture-{name}", Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"), request)


def test_pictures_of_studies_can_be_read(tmp_path: Path) -> None:
    store, work = tmp_path / "store", "add n=65536"
    found = sweep(work, "t4", ["sm.count=10,20,40", "clock.boost=1.2 GHz,1.5 GHz"], store=store, workers=1)
    assert faults(plotted(found.plot)) == []
    ranked = sensitivity(work, "t4", only=["dram.latency", "clock.boost"], store=store, workers=1)
    assert faults(plotted(ranked.plot)) == []


def test_what_has_moved_or_lost_its_colour_is_no_longer_alike() -> None:
    """The tolerance lets other numbers through, and nothing that a reader would see at a glance."""
    kept = Image.open(FOLDER / "page-report.png").convert("RGB")
    picture = np.asarray(kept)
    noise = np.random.default_rng(0).normal(0, 6, picture.shape)
    assert likeness(picture, np.clip(picture + noise, 0, 255)) > ALIKE
    assert likeness(picture, np.roll(picture, 8, axis=0)) < ALIKE  # a line of text more
    half = picture.copy()
    half[picture.shape[0] // 2 :] = 255  # what should stand below is not there
    assert likeness(picture, half) < ALIKE
    assert likeness(picture, 255 - picture) < ALIKE


def test_faults_of_pictures_are_found() -> None:
    figure = Figure(figsize=(4, 3))
    axes = figure.subplots()
    axes.bar(["a", "b"], [1, 2], label="bars")
    axes.set_title("a title that is far too long for a picture that is only four inches wide")
    axes.legend(loc="lower right")
    axes.set_yscale("log")
    found = " ".join(faults(figure))
    for words in ("clipped: a title", "bars without values", "legend over bars", "tick: "):
        assert words in found
    axes.text(0, 1.5, "one")
    axes.text(0, 1.5, "two")
    assert "over each other: 'one' and 'two'" in " ".join(faults(figure))
