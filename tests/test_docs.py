"""The documentation site, without building it (`test_site` does): every page is in the navigation, links and anchors
lead somewhere, pictures are drawn by the commands that stand above them, and what pages explain is what there is."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import unicodedata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from arch.load import load_arch
from scripts.tables import reference
from sim.app.cli import _parser
from sim.app.cli.arguments import parse
from sim.gpu.units.events import Reason
from sim.rdu.layout import Reason as StageReason
from sim.tpu.machine import NON_MATRIX

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


def loaded(name: str) -> ModuleType:
    """A script, as a module."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / "scripts" / f"{name}.py")
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


def test_included_files_exist() -> None:
    for text in PAGES.values():
        for name in re.findall(r'^--8<-- "([^":]+)', text, re.MULTILINE):
            assert (ROOT / name).is_file()
    # What is included stands on another page than its own: links from where it lies would lead nowhere there.
    assert not _LINK.search(prose((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))


PUBLIC = {
    "api/running.md": ("sim.app.report.report", "Report"),
    "api/tile-language.md": ("sim.gpu.language", None),
    "api/workloads.md": ("workloads.graphs", None),
    "api/machines.md": ("arch", None),
}
"""Pages of the reference, and what they have to name: one name, or all that a package exports."""


@pytest.mark.parametrize("page", PUBLIC)
def test_what_packages_export_is_in_the_reference(page: str) -> None:
    module, name = PUBLIC[page]
    names = [name] if name else importlib.import_module(module).__all__
    elsewhere = PAGES["api/running.md"]  # errors
    assert [n for n in names if f"`{n}`" not in PAGES[page] + elsewhere and f"`{n}(" not in PAGES[page]] == []


def test_what_is_imported_from_sim_is_in_the_reference() -> None:
    text = "".join(text for name, text in PAGES.items() if name.startswith("api/"))
    assert [n for n in importlib.import_module("sim").__all__ if f"`{n}`" not in text and f"`{n}(" not in text] == []


def test_the_reference_names_what_there_is() -> None:
    """Each directive and each row of a class stands for something that can be imported."""
    for page, text in PAGES.items():
        if not page.startswith("api/"):
            continue
        blocks = re.findall(r"<!-- reference: ([\w.]+): ([^>]+?) -->(.*?)<!-- end -->", text, re.DOTALL)
        assert blocks, page
        for module, names, body in blocks:
            found = reference.named(importlib.import_module(module), names)
            assert [n for n in found if not hasattr(importlib.import_module(module), n)] == [], (page, module)
            assert "::: " in body or "| `" in body


@pytest.mark.parametrize("page", [name for name in PAGES if name.startswith("api/")])
def test_the_reference_says_what_the_docstrings_say(page: str) -> None:
    """`scripts/docs tables reference` would write the page as it is."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert reference.with_tables(text) == text


def test_a_row_of_the_reference() -> None:
    class Thing:
        """A thing: of some kind. It does more."""

        def do(self, what: int, *, how: str = "") -> None:
            """Does `what`. And more."""

    assert reference.first_sentence("A thing. It does more.\n\nAnd more.") == "A thing."
    assert reference.first_sentence(None) == ""
    assert list(reference.members(Thing)) == [("do(what, *, how=)", "Does `what`.")]


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if "```python" in text])
def test_what_python_on_a_page_imports_is_there(page: str) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE):
        for statement in ast.walk(ast.parse(block)):
            if isinstance(statement, ast.ImportFrom) and re.match(r"(sim|arch|workloads)\b", str(statement.module)):
                module = importlib.import_module(str(statement.module))
                assert [alias.name for alias in statement.names if not hasattr(module, alias.name)] == []


def test_every_command_has_its_section() -> None:
    help_ = _parser().format_help()
    (commands,) = re.findall(r"positional arguments:\n  COMMAND\n(.*?)\n\n", help_, re.DOTALL)
    words = re.findall(r"^    ([\w-]+)", commands, re.MULTILINE)
    assert words
    assert [word for word in words if f"\n## {word}\n" not in PAGES["commands.md"]] == []
    assert [word for word in words if f"[`tilewave {word}`](#{word})" not in PAGES["commands.md"]] == []


def test_the_example_report_is_replaced_section_by_section() -> None:
    page = "Text.\n\n```\nRoof (old)\n  a  1\n```\n\n```\nOther\n  b\n```\n"
    new = loaded("docs").reported(page, "Roof (new)\n  a  2\n\nMore\n  c\n")
    assert new == page.replace("Roof (old)\n  a  1", "Roof (new)\n  a  2")


def test_pictures_of_the_gallery_are_drawn_by_their_commands() -> None:
    docs = loaded("docs")
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


def test_the_glossary_has_every_state_of_other_units() -> None:
    states = PAGES["glossary.md"].partition("## States of units")[2].partition("\n## ")[0]
    words = {word.strip() for line in states.splitlines() for word in line.split("|")[1:2] for word in word.split(",")}
    wanted = {"weight stall", "weight shift", "active", *NON_MATRIX, *(reason.name.lower() for reason in StageReason)}
    named_units = {"activation", "host", "unified buffer"}
    assert {word.replace("_", " ") for word in wanted} - named_units <= words


def test_words_of_other_tools_stand_beside_figures_that_exist() -> None:
    """`--set a.b=...` on the page of comparisons names a figure of a machine."""
    page = PAGES["comparison.md"]
    for path, value in re.findall(r'--set ([\w.]+)="?([\w .]+)"?', page):
        arch = "tpu-v1" if path.startswith("array.") else "h100-sxm"
        if value.strip("."):
            assert load_arch(arch, [f"{path}={value}"])
