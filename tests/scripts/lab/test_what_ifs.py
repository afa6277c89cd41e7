"""What-ifs that once went wrong stay right, and the page has all of them."""

from pathlib import Path

import pytest

from scripts.lab.what_ifs import PAGE, WHAT_IFS, WhatIf, broken, times
from scripts.tables import main
from scripts.tables.place import END, begin, standing

BETTER = WhatIf("better", "add n=1024", "t4", "", ((), ("clock.boost=2 GHz",)))
WITHOUT = WhatIf("without", "add n=1024", "t4", "", ((), ()), without="tma")


def test_a_better_machine_that_is_slower_is_wrong_and_so_is_a_mechanism_that_costs() -> None:
    assert broken(BETTER, [2.0, 2.03])
    assert not broken(BETTER, [2.0, 2.01, 1.0])
    assert broken(WITHOUT, [2.0, 1.97])
    assert not broken(WITHOUT, [2.0, 2.5])
    assert not broken(WITHOUT, [2.0]), "not used"


def test_runs_of_a_line_differ_in_what_it_says() -> None:
    slow, fast = times(BETTER)
    assert fast < slow


@pytest.mark.parametrize("what", WHAT_IFS, ids=lambda w: w.workload)
def test_a_line_stays_right(what: WhatIf) -> None:
    assert not broken(what, times(what))


@pytest.mark.slow
def test_all_lines_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{begin('what-ifs')}\nold\n{END}\nafter\n")
    assert main(["what-ifs", "--page", str(page)]) == 0
    printed = capsys.readouterr()
    assert not printed.err
    assert printed.out.count("\n") == len(WHAT_IFS)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text


def test_the_page_has_every_line() -> None:
    table = standing(PAGE.read_text(encoding="utf-8"), "what-ifs")
    for what in WHAT_IFS:
        assert f"| `{what.workload}` on {what.machine}, {what.text} | {what.before} | " in table
    assert table.count("\n| `") == len(WHAT_IFS)


def test_a_page_without_a_place_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("text")
    assert main(["what-ifs", "--only", "plasticine", "--page", str(page)]) == 0
    assert page.read_text() == "text"
    assert "30.8, 44.3 us" in capsys.readouterr().out
