"""The documentation site as MkDocs builds it, strictly: a page, a link or an anchor that is missing is an error."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="needs the extra docs (MkDocs)")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("index.html", "gallery.html", "reading-a-report.html", "api/running.html"):
        assert (tmp_path / "site" / page).stat().st_size > 5000
