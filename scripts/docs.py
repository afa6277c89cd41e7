"""Builds the documentation site with MkDocs, and draws the gallery's pictures by the commands that stand above them."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs" / "gallery.md"

_ENTRY = re.compile(r"```\ntilewave ([^\n]+)\n```\n\n!\[[^\]\n]+\]\(([^)\n]+)\)")
_OPTIONS = ("--plot", "--show-array")


def gallery(text: str) -> list[tuple[list[str], str]]:
    """Words of each command of the gallery, without the program's name, and the picture below it."""
    return [(shlex.split(command), picture) for command, picture in _ENTRY.findall(text)]


def drawn_to(words: list[str]) -> str:
    """The file that a command draws to, from the root; empty if it draws none."""
    return next((words[i + 1] for i, word in enumerate(words[:-1]) if word in _OPTIONS), "")


def main() -> int:
    """Draws, then builds or serves; the exit code of MkDocs."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--pictures", action="store_true", help="draw the pictures of the gallery again")
    parser.add_argument("--serve", action="store_true", help="show the site on this machine")
    options = parser.parse_args()
    if options.pictures:
        for words, picture in gallery(GALLERY.read_text(encoding="utf-8")):
            print(f"drawing {picture}", file=sys.stderr)
            command = [sys.executable, "-m", "sim.app.cli", *words, "--force"]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    how = ["serve"] if options.serve else ["build", "--strict", "--clean"]
    return subprocess.run([sys.executable, "-m", "mkdocs", *how], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
