"""What Git says about files, without running anything that its configuration names."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from pathlib import Path

from arch import reading
from arch.errors import InputError

_GIT_SECONDS = 60

_SETTINGS = (
    *("log.showSignature=false", "gpg.program=false", "gpg.ssh.program=false", "gpg.x509.program=false"),
    *("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.sshCommand=false", "core.askPass=false"),
    *("core.pager=cat", "core.editor=false", "diff.external=", "credential.helper=", "i18n.logOutputEncoding=UTF-8"),
    *("log.mailmap=false", "log.follow=false", "fetch.recurseSubmodules=false"),
)
"""Over those of a folder's own configuration, which could name programs."""

_ENVIRONMENT = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0",
                "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"}  # fmt: skip
"""All that Git finds of its own in the environment: nothing is fetched, nobody asked, nothing written."""


def git(lock: Path, *words: str) -> str:
    """What Git says about the folder of a file. Whatever its configuration names, which may be somebody else's, no
    program is run and nothing is fetched."""
    command = ["git", "--no-pager", *(word for setting in _SETTINGS for word in ("-c", setting)), *words]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        with tempfile.TemporaryFile() as said, subprocess.Popen(
            command, cwd=lock.parent.resolve(), env=kept | _ENVIRONMENT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=said,
        ) as git:  # fmt: skip
            end = threading.Timer(_GIT_SECONDS, git.kill)
            end.start()
            try:
                assert git.stdout is not None
                found = reading.unpacked(git.stdout, f"{lock}: Git", reading.MOST_BYTES)
            except InputError:
                git.kill()
                raise
            finally:
                end.cancel()
            git.wait()
            said.seek(0)
            reason = said.read(1000).decode("utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{lock}: Git cannot be asked: {error}") from None
    if git.returncode:
        raise InputError(f"{lock}: Git: {(reason.strip().splitlines() or ['failed'])[0]}")
    return found.decode("utf-8", errors="replace")


def blob(path: Path, commit: str) -> str:
    """A file's text at a commit. InputError where the commit or the file in it is not there."""
    if commit.startswith("-") or not commit.isprintable():
        raise InputError(f"{path}: {commit!r} is no commit")
    return git(path, "cat-file", "blob", f"{commit}:./{path.name}")
