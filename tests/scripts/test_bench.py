"""The comparison of two versions' speed: whose process begins, what the ratio is of, wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import bench


@pytest.fixture
def paired(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Pairs in which the other version takes 3 s, and this one 2 s where it begins, 1 s where not."""
    asked: list[tuple[str, int]] = []

    def pair(name: str, trees: tuple[str, str], first: int) -> list[bench.Timed]:
        assert trees[1] == bench.ROOT
        asked.append((name, first))
        return [bench.Timed(3.0, 100, 50), bench.Timed(1.0 + first, 100, 51)]

    monkeypatch.setattr(bench, "_pair", pair)
    monkeypatch.setattr(bench, "_child", lambda *words: "")
    monkeypatch.setattr(bench, "_tree_of", lambda commit, folder: None)
    return asked


def test_each_version_begins_as_often_as_the_other(
    paired: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--against", "HEAD", "--pairs", "4", "--only", "stream-add", "--json"]) == 0
    assert paired == [("stream-add", first) for first in (0, 1, 0, 1)]
    (found,) = json.loads(capsys.readouterr().out)
    assert found["ratios"] == [3.0, 1.5, 3.0, 1.5]
    assert found["ratio"] == 2.25  # the median
    assert found["cycles"] == [50, 51]


def test_other_cycles_are_said(paired: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--against", "HEAD", "--pairs", "1", "--only", "wgmma-4096"]) == 0
    assert capsys.readouterr().out == "wgmma-4096   3.000 times as fast (3.000 to 3.000), 50 cycles then, 51 now\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--against", "no-such-commit"], "--against no-such-commit: no commit of this repository"),
        (["--against", "HEAD", "--pairs", "0"], "--pairs 0: at least 1"),
        (["--against", "HEAD", "--only", "memory"], "--against compares wgmma-4096, "),
    ],
)
def test_wrong_input_ends_before_anything_runs(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(words)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_a_version_is_unpacked_whole(tmp_path: Path) -> None:
    if not (Path(bench.ROOT) / ".git").exists():
        pytest.skip("no clone: git has no other version")
    bench._tree_of("HEAD", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arch", "sim", "workloads"]
    assert (tmp_path / "sim" / "engine" / "jit.py").is_file()
