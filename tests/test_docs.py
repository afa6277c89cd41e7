"""The documentation site, without building it: every page is in the navigation, links and anchors lead somewhere,
pictures are drawn by the commands that stand above them, and what pages explain is what there is."""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from arch.load import load_arch
from sim.app.cli import _parser
from sim.app.cli.arguments import parse
from sim.gpu.engine.events import Reason

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}

_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)")


def prose(text: str) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", _FENCED.sub("", text))


def anchors(text: str) -> set[str]:
    """What the headings of a page are called in links, as Python-Markdown makes it."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCED.sub("", text), re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        ascii_ = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_).strip().lower()))
    return found


def broken(page: str, text: str) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for link in _LINK.findall(prose(text)):
        if re.match(r"https?://", link):
            continue
        name, _, anchor = link.partition("#")
        target = (DOCS / page).parent / name if name else DOCS / page
        if not target.is_file() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            found.append(link)
    return found


def listed(nav: Any) -> list[str]:
    """Files of a navigation, in its order."""
    if isinstance(nav, str):
        return [nav]
    return [file for entry in (nav.values() if isinstance(nav, dict) else nav) for file in listed(entry)]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_script", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(listed(SITE["nav"])) == sorted(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert broken(page, PAGES[page]) == []


def test_a_broken_link_is_found() -> None:
    wrong = ["nothing.md", "index.md#no-such-heading", "#nor-here", "images/none.png"]
    text = "# Here\n" + " ".join(f"[x]({link})" for link in [*wrong, "#here", "index.md#start", "https://a.org/b"])
    assert broken("faults.md", text.replace("#here", "faults.md#faults")) == wrong


def test_what_the_site_needs_is_an_extra() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {re.split(r"[>=\[]", entry)[0] for entry in extras["docs"]}
    assert named == {"mkdocs-material", "mkdocstrings-python"}
    assert "docs" not in "".join(extras["dev"])


def test_included_files_exist() -> None:
    for text in PAGES.values():
        for name in re.findall(r'^--8<-- "([^":]+)', text, re.MULTILINE):
            assert (ROOT / name).is_file()
    # What is included stands on another page than its own: links from where it lies would lead nowhere there.
    assert not _LINK.search(prose((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))


def test_modules_of_the_interface_exist() -> None:
    for name in re.findall(r"^::: ([\w.]+)$", PAGES["api.md"], re.MULTILINE):
        parts = name.split(".")
        while not (ROOT.joinpath(*parts).with_suffix(".py")).is_file():
            parts.pop()
            assert parts, name


def test_pictures_of_the_gallery_are_drawn_by_their_commands() -> None:
    docs = script()
    entries = docs.gallery(PAGES["gallery.md"])
    headings = re.findall(r"^## ", PAGES["gallery.md"], re.MULTILINE)
    assert len(entries) == len(headings) == PAGES["gallery.md"].count("![") > 0
    for words, picture in entries:
        assert docs.drawn_to(words) == f"docs/{picture}"
        assert (DOCS / picture).is_file()
        assert (DOCS / picture).stat().st_size < 400_000
        assert parse(_parser(), words)


def test_every_line_of_the_example_report_is_explained() -> None:
    """Each label of the report on the page stands in the text around it, too."""
    page = PAGES["reading-a-report.md"]
    text = " ".join(prose(page).split()) + " ".join(re.findall(r"`([^`\n]+)`", _FENCED.sub("", page)))
    for block in re.findall(r"```\n(.*?)```", page, re.DOTALL):
        labels = re.findall(r"^  (\w[\w ]*?)(?:  |$)", block, re.MULTILINE)
        for label in {label.removesuffix(" pipe") for label in labels}:
            known = label in text or label in PAGES["glossary.md"]
            assert known or len(label) > 20, label  # a sentence, a schedule


def test_the_glossary_has_every_state_of_a_warp() -> None:
    states = PAGES["glossary.md"].partition("## States of warps")[2].partition("\n## ")[0]
    rows = {line.split("|")[1].strip() for line in states.splitlines() if line.startswith("| ")} - {"state"}
    assert rows == {reason.name.lower().replace("_", " ") for reason in Reason}


def test_words_of_other_tools_stand_beside_figures_that_exist() -> None:
    """`--set a.b=...` on the page of comparisons names a figure of a machine."""
    page = PAGES["comparison.md"]
    for path, value in re.findall(r'--set ([\w.]+)="?([\w .]+)"?', page):
        arch = "tpu-v1" if path.startswith("array.") else "h100-sxm"
        if value.strip("."):
            assert load_arch(arch, [f"{path}={value}"])
