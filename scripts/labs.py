"""Makes the labs' notebooks of their solutions: runs each, keeps its outputs, and takes the answers out for students.

A solution (docs/labs/solutions) is what is written; a cell of it with the tag `answer` has in its metadata, as `stub`,
what the student finds instead. `python scripts/labs.py 2` does it for lab 2, without a number for all of them.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "labs"
ANSWER = "answer"
LANGUAGE = {"name": "python", "file_extension": ".py", "mimetype": "text/x-python", "pygments_lexer": "ipython3"}


def executed(notebook: Any) -> Any:
    """The notebook with the outputs of this machine, and nothing in it that differs from run to run."""
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [plain(output) for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata["language_info"] = dict(LANGUAGE)
    return notebook


def plain(output: Any) -> Any:
    """An output without the number of its execution."""
    if "execution_count" in output:
        output["execution_count"] = None
    return output


def for_students(solution: Any) -> Any:
    """The same notebook with the stubs in place of the answers."""
    lab = copy.deepcopy(solution)
    for cell in lab.cells:
        if ANSWER in cell.metadata.get("tags", ()):
            cell.source = cell.metadata.pop("stub")
    return lab


def main() -> int:
    """Makes the labs that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("numbers", nargs="*", metavar="N", help="labs; default: all")
    options = parser.parse_args()
    for path in sorted((FOLDER / "solutions").glob("*.ipynb")):
        if options.numbers and path.name.split("-")[0] not in options.numbers:
            continue
        print(path.name, file=sys.stderr)
        solution = nbformat.read(path, as_version=4)
        lab = executed(for_students(solution))
        nbformat.write(executed(solution), path)
        nbformat.write(lab, FOLDER / path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
