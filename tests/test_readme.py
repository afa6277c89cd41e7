"""What README and docs promise about commands: they parse, their Python runs, lessons and pictures exist."""

import re
import shlex
from pathlib import Path

import pytest

from sim.app.cli import _parser
from sim.app.cli.arguments import parse

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PAGES = {page.name: page.read_text(encoding="utf-8") for page in DOCUMENTS}
COMMAND = re.compile(r"(?:^\$? ?|- run: |`)(tilewave [^`\n]*)", re.MULTILINE)
COMMANDS = {
    (page, command)
    for page, text in PAGES.items()
    for command in COMMAND.findall(text)
    if " --arch " in command and "..." not in command
}


@pytest.mark.parametrize(("page", "command"), sorted(COMMANDS))
def test_commands_parse(page: str, command: str) -> None:
    assert parse(_parser(), shlex.split(command, comments=True)[1:])


def test_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGES["README.md"], re.DOTALL)
    exec(compile(block.replace("4096", "256"), "README.md", "exec"), {})
    assert "on h100-sxm" in capsys.readouterr().out


def test_all_lessons_are_named() -> None:
    lessons = {path.stem for path in (ROOT / "scripts" / "lessons").glob("*.py")} - {"lesson"}
    section = PAGES["labs.md"].partition("## Lessons")[2].partition("\n## ")[0]
    assert [lesson for lesson in sorted(lessons) if f"`{lesson}`" not in section] == []


def test_pictures_exist() -> None:
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", PAGES["README.md"])
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", PAGES["README.md"])
    files = [link for link in links if "://" not in link]
    assert "docs/validation.md" in files
    assert [link for link in files if not (ROOT / link).is_file()] == []
