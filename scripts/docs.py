"""Builds the documentation site with MkDocs. The reference is written from docstrings first; on demand the gallery's
pictures are drawn, and the example report is run, by the commands that stand on their pages."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs" / "gallery.md"
READING = ROOT / "docs" / "reading-a-report.md"

_ENTRY = re.compile(r"```\ntilewave ([^\n]+)\n```\n\n!\[[^\]\n]+\]\(([^)\n]+)\)")
_OPTIONS = ("--plot", "--show-array")
_BLOCK = re.compile(r"```\n(.*?)```\n", re.DOTALL)


def gallery(text: str) -> list[tuple[list[str], str]]:
    """Words of each command of the gallery, without the program's name, and the picture below it."""
    return [(shlex.split(command), picture) for command, picture in _ENTRY.findall(text)]


def drawn_to(words: list[str]) -> str:
    """The file that a command draws to, from the root; empty if it draws none."""
    return next((words[i + 1] for i, word in enumerate(words[:-1]) if word in _OPTIONS), "")


def reported(page: str, report: str) -> str:
    """The page on reports with the sections of another report: each block of code takes what has its first words."""
    sections = report.strip("\n").split("\n\n")
    title = re.compile(r" \(|$", re.MULTILINE)
    by_title = {title.split(section)[0]: section for section in sections}

    def changed(block: re.Match[str]) -> str:
        section = by_title.get(title.split(block[1])[0])
        return f"```\n{section}\n```\n" if section else block[0]

    return _BLOCK.sub(changed, page)


def _tilewave(words: list[str], output: int = subprocess.DEVNULL) -> str:
    """Runs a command of the simulator from the root; what it printed, if that is asked for."""
    command = [sys.executable, "-m", "sim.app.cli", *words]
    return str(subprocess.run(command, cwd=ROOT, check=True, stdout=output, text=True).stdout)


def main() -> int:
    """Draws, then builds or serves; the exit code of MkDocs."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--pictures", action="store_true", help="draw the pictures of the gallery, and run the example report, again"
    )
    parser.add_argument("--serve", action="store_true", help="show the site on this machine")
    options = parser.parse_args()
    if options.pictures:
        for words, picture in gallery(GALLERY.read_text(encoding="utf-8")):
            print(f"drawing {picture}", file=sys.stderr)
            _tilewave([*words, "--force"])
        page = READING.read_text(encoding="utf-8")
        words = shlex.split(_BLOCK.findall(page)[0])[1:]
        READING.write_text(reported(page, _tilewave(words, subprocess.PIPE)), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "scripts.tables", "reference"], cwd=ROOT, check=True)
    how = ["serve"] if options.serve else ["build", "--strict", "--clean"]
    return subprocess.run([sys.executable, "-m", "mkdocs", *how], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
