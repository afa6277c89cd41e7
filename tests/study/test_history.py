"""`tilewave history`: what a folder's Git may hold, and that nothing of it is run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from arch.errors import InputError
from sim.app.cli import main
from sim.app.study import lockfile
from sim.app.study.digest import Digest
from sim.app.study.history import history
from sim.app.study.lockfile import Entry, Lock

ENTRY = Entry("t4", "gemm m=1", "0" * 16, Digest(100, 10, "mma"))
SIGNATURE = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n"
NAMES = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock in a repository of one signed commit, whose subject holds an escape code."""
    lock = tmp_path / "cycles.lock"
    lockfile.write(lock, Lock("1", {"a": ENTRY, 'a"b': ENTRY}))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "red \x1b[31m")
    commit = git(tmp_path, "cat-file", "commit", "HEAD").replace("\n\n", f"\n{SIGNATURE}\n", 1)
    git(tmp_path, "update-ref", "HEAD", git(tmp_path, "hash-object", "-t", "commit", "-w", "--stdin", given=commit))
    return lock


def git(folder: Path, *words: str, given: str = "") -> str:
    done = subprocess.run(
        ("git", "-C", str(folder), *words), input=given, text=True, check=True, capture_output=True, timeout=20,
        env={**os.environ, **NAMES},
    )  # fmt: skip
    return done.stdout if words[0] == "cat-file" else done.stdout.strip()


def test_no_program_is_run_that_the_folder_names(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, ran = lock.parent, lock.parent / "ran"
    script = folder / "script"
    script.write_text(f"#!/bin/sh\ntouch {ran}\nexit 1\n")
    script.chmod(0o755)
    (folder / ".gitattributes").write_text("cycles.lock diff=other\n")
    for name in ("gpg.program", "core.fsmonitor", "core.pager", "diff.external", "diff.other.textconv",
                 "core.sshCommand", "credential.helper", "core.askPass", "alias.cat-file"):  # fmt: skip
        git(folder, "config", name, str(script))
    git(folder, "config", "log.showSignature", "true")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(script))
    assert len(history(lock, "a").records) == 1
    assert not ran.exists()
    git(folder, "log", "--oneline")  # what a plain call does there
    assert ran.exists()


def test_the_environment_names_no_other_repository(lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert len(history(lock, "a").records) == 1


def test_nothing_is_fetched(lock: Path, tmp_path: Path) -> None:
    """Of a clone that leaves contents out, until somebody asks for them, by a program of its own if it names one."""
    folder, ran = lock.parent, tmp_path / "ran"
    for name, value in (("core.repositoryFormatVersion", "1"), ("extensions.partialClone", "origin"),
                        ("remote.origin.url", f"ext::touch {ran}"), ("remote.origin.promisor", "true"),
                        ("protocol.ext.allow", "always")):  # fmt: skip
        git(folder, "config", name, value)
    blob = git(folder, "rev-parse", "HEAD:cycles.lock")
    (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(InputError, match="Git"):
        history(lock, "a")
    assert not ran.exists()
    with pytest.raises(subprocess.CalledProcessError):
        git(folder, "cat-file", "blob", blob)  # what a plain call does there
    assert ran.exists()


def test_a_name_with_a_quote_has_a_history(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [record.entry for record in history(lock, 'a"b').records] == [ENTRY]
    assert main(["history", 'a"c', "--config", str(lock.with_name("tilewave.toml"))]) == 2
    assert capsys.readouterr().err.endswith('nearest: a"b\n')


def test_codes_of_a_subject_do_not_reach_the_terminal(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "a", "--config", str(lock.with_name("tilewave.toml"))]) == 0
    assert r"red \x1b[31m" in capsys.readouterr().out


@pytest.mark.parametrize("text", [b"\xff\xfe", b'[case."a\xff"]\n', b'[case."a"]\narch = \xff\n', b"[case.]\n"])
def test_versions_that_are_no_text_count_for_nothing(lock: Path, text: bytes) -> None:
    whole = lock.read_bytes()
    lock.write_bytes(text)
    git(lock.parent, "commit", "-qam", "damaged")
    lock.write_bytes(whole)
    assert len(history(lock, "a").records) == 1
    lock.write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"cycles.lock: cannot be read: byte 0 is not UTF-8"):
        history(lock, "a")
