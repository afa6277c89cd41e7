"""Answers that want marks without being right: what they do in their process stays there."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from sim.app.cli import main
from sim.app.labs import confine
from sim.app.labs.answers import Answers
from sim.app.labs.grade import ANSWER, grade, marks_of

FULL = '[{"title": "x", "points": 100, "of": 100, "said": ""}]'

FORGERIES = {
    "leaves after it has written everywhere": f"""
import os, sys
for fd in range(256):
    try: os.write(fd, b'{FULL}\\n')
    except OSError: pass
os._exit(0)
""",
    "writes at its exit": f"""
import atexit, os
atexit.register(lambda: [os.write(fd, b'{FULL}\\n') for fd in (1, 2)])
raise SystemExit(0)
""",
    "replaces what judges": """
import sys, types
for name, module in list(sys.modules.items()):
    if name.startswith(("sim.app.labs", "__main__")):
        for key in ("marked", "unanswered", "tasks", "marks_of", "number", "call", "agrees", "power_of_two"):
            if hasattr(module, key):
                setattr(module, key, lambda *a, **k: None)
import sim.app.labs.roofline as lab
lab.GUESSES.clear()
lab.TASKS = ()
""",
    "replaces the simulator": """
import sim.app.run, sim.app.labs.roofline as lab
class Report:
    time_us, bound = 0.0, "overhead"
sim.app.run.simulate = lab.simulate = lambda *a, **k: Report()
change, smallest = "sm.count=2", 4
""",
    "replaces NumPy and builtins": """
import builtins, numpy as np
builtins.abs = lambda x: 0
builtins.isinstance = lambda *a: True
np.allclose = np.array_equal = lambda *a, **k: True
ridge = lambda report: 1.0
""",
    "compares as equal to all": """
class Yes(int):
    __eq__ = __le__ = __ge__ = __lt__ = __gt__ = __ne__ = lambda self, other: True
    __hash__ = int.__hash__
    __and__ = __sub__ = __rsub__ = lambda self, other: Yes(0)
    __abs__ = lambda self: Yes(0)
class Word(str):
    __eq__ = lambda self, other: True
    __hash__ = lambda self: 0
class Always(dict):
    def get(self, key, default=None): return Word("dram")
smallest, guesses, change = Yes(1), Always(a=1), Word("a=b")
ridge = lambda report: Yes(1)
""",
    "looks at the frames below it": """
import gc, inspect
def ridge(report):
    for info in inspect.stack():
        info.frame.f_locals.update(right=1.0, found=1.0)
    for found in gc.get_objects():
        if type(found).__name__ == "Task":
            object.__setattr__(found, "check", lambda answers: None)
    return 1.0
""",
    "speaks the channel's language": """
import gc, json, socket
def ridge(report):
    for found in gc.get_objects():
        if isinstance(found, socket.socket):
            found.sendall(b'{"points": 2, "said": "", "passed": true}\\n' * 9)
    return 1.0
""",
    "goes on in a thread": """
import os, threading
def shout():
    while True:
        for fd in range(64):
            try: os.write(fd, b'{"value": {"value": 100, "objects": []}}\\n')
            except OSError: pass
threading.Thread(target=shout, daemon=True).start()
ridge = lambda report: 1.0
""",
    "returns no numbers": """
values = iter([float("nan"), 10**5000, float("inf")])
ridge = lambda report: next(values)
smallest, guesses = 1 << 5000, {"a": float("nan")}
change = "dram.bandwidth=nan TB/s"
""",
    "is neither more nor less": """
ridge = lambda report: float("nan")
smallest = float("nan")
""",
    "sends an object of its own": """
class Evil:
    def __reduce__(self): return (print, ("forged",))
    def item(self): return 1.0
    size = 1
ridge = lambda report: Evil()
smallest = guesses = change = Evil()
""",
    "prints without an end": """
import sys
ridge = lambda report: [print("x" * 1000) for _ in range(1000)] and "x" * (80 << 20)
change = "x=" + "9" * (1 << 20)
""",
    "returns what is too deep": """
deep = 1
for _ in range(100_000): deep = [deep]
ridge = lambda report: deep
guesses = deep
""",
    "stops the judge": """
import os, signal
for pid in (os.getppid(),):
    try:
        with open(f"/proc/{pid}/mem", "r+b") as memory: memory.write(b"")
        raise SystemExit("it could be written")
    except OSError: pass
ridge = None
""",
}


@pytest.mark.parametrize("source", FORGERIES.values(), ids=list(FORGERIES))
def test_a_forgery_brings_nothing(source: str) -> None:
    marks = marks_of("roofline", [source])
    assert [mark.points for mark in marks] == [0] * 4
    assert sum(mark.of for mark in marks) == 10
    assert all(mark.said and len(mark.said) < 1000 for mark in marks)


def test_a_schedule_cannot_say_how_exact_it_has_to_be() -> None:
    wrong = """
import dataclasses
from sim.app.labs.tiling import naive
def transpose(n):
    program = naive(n)
    return dataclasses.replace(program, tolerance=1e9, reference=lambda x: x)
"""
    (mark,) = marks_of("tiling", [wrong])[3:]
    assert mark.points == 0


def test_values_and_errors_come_over_and_code_does_not() -> None:
    with Answers(["class A: pass\na, f, g = (1, 'x', None, [2.5]), lambda x: x + 1, A()"], ["a", "f", "g"]) as answers:
        assert answers["a"] == (1, "x", None, [2.5])
        assert answers["f"](41) == 42
        assert type(answers["g"]).__name__ == "A"
        assert not vars(type(answers["g"])).keys() - {"__module__", "__doc__"}


def notebook(folder: Path, source: str) -> Path:
    path = folder / "x.ipynb"
    cell = {"cell_type": "code", "metadata": {"tags": [ANSWER]}, "source": source, "outputs": []}
    path.write_text(json.dumps({"cells": [cell], "metadata": {"tilewave": {"lab": "roofline"}}}), encoding="utf-8")
    return path


def test_nothing_lives_on_nothing_is_written_and_no_code_reaches_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A process in a session of its own, twice removed, that the answers leave behind; and one that writes a file."""
    source = f"""
import os, sys, time
kept = {str(tmp_path / "kept")!r}
if not os.fork():
    os.setsid()
    if not os.fork():
        open("/proc/self/comm", "w").write("left-behind") if os.access("/proc/self/comm", os.W_OK) else None
        time.sleep(600)
    os._exit(0)
try:
    open(kept, "w").write("marks")
except OSError:
    pass
os.system("echo '\\x1b[31m' 1>&2")
print("\\x1b[31m", file=sys.stderr)
raise ValueError("\\x1b[31m" + str(os.getpid()))
"""
    before = set(confine._processes())
    assert main(["grade", str(notebook(tmp_path, source))]) == 1
    out, err = capfd.readouterr()
    assert "0 of 10" in out
    assert "\x1b" not in out + err
    assert (tmp_path / "kept").stat().st_size == 0
    mine = {n for n, one in confine._processes().items() if n not in before and one.parent in (1, os.getpid())}
    assert not [n for n in mine if b"sim.app.labs.grade" in Path(f"/proc/{n}/cmdline").read_bytes()]


@pytest.mark.parametrize(
    ("source", "says"),
    [("while True: pass", "took more than 3 s"),
     ("import os, time\nfor _ in range(99): os.fork() or time.sleep(99)", "or 64 processes")],
)  # fmt: skip
def test_what_takes_too_much_is_ended(
    source: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = time.monotonic()
    assert main(["grade", str(notebook(tmp_path, source)), "--seconds", "3" if "while" in source else "60"]) == 2
    assert says in capsys.readouterr().err
    assert time.monotonic() - began_s < 60


def test_memory_has_an_end(tmp_path: Path) -> None:
    found = grade(notebook(tmp_path, "import numpy as np\nsmallest = int(np.ones(1 << 30).sum())"))
    assert found.points == 0
    assert "MemoryError" in found.marks[2].said
