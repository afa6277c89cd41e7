"""The notebook of the documentation runs, and shows what it promises."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")


@pytest.mark.slow
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    notebook = nbformat.read(ROOT / "docs" / "what-if.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    html = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    for words in ("What bounds it", "set by the user", "12 of 12 runs"):
        assert words in html
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4
    assert all(output.output_type != "error" for output in outputs)


def test_it_is_kept_without_outputs() -> None:
    import nbformat

    notebook = nbformat.read(ROOT / "docs" / "what-if.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells)
