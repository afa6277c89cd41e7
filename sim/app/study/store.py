"""Results on disk, by the hash of everything that they depend on.

One SQLite file in write-ahead mode: several processes share it, a result is there whole or not at all, whatever
happens to the process or the disk in the middle of writing it. What is read back is checked against a hash of
it and its key. A
result that cannot be written is a warning, never the end of a study.

A *claim* says that somebody is at work on a key, so that two studies at once do not simulate the same thing. It lapses
when its owner stops renewing it, or at once if the owner was a process of this machine that is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sqlite3
import sys
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from arch.errors import InputError

FORMAT = 1
"""Version of the file's tables."""

CLAIM_S = 60.0
"""A claim that has not been renewed for so long is void."""

_BUSY_TIMEOUT_S = 30.0
_TABLES = """
create table if not exists results (
    key text primary key, document blob not null, digest blob not null, made_at real not null
) without rowid;
create table if not exists claims (key text primary key, owner text not null, until real not null) without rowid;
"""


def default_store() -> Path:
    """Results file in the user's cache directory."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "tilewave" / "results.sqlite"


class ResultStore:
    """Results by key; safe for any number of processes. Use as a context manager, or `close` it."""

    def __init__(self, path: Path) -> None:
        """Opens the store at `path`, made if needed; one that cannot be written keeps nothing, and `trouble` says why.

        InputError for a file that is something else.
        """
        self.path = path
        self.trouble = ""
        """Why results are not being kept, once that has happened."""
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open(path)
        except (OSError, sqlite3.OperationalError) as error:
            self._warn(error)
            self._open(":memory:")
        except sqlite3.Error as error:
            raise InputError(f"--store {path}: cannot be used as a results file ({error}); name another file") from None

    def _open(self, place: Path | str) -> None:
        self._db = sqlite3.connect(place, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = normal")
        version = self._db.execute("pragma user_version").fetchone()[0]
        if version not in (0, FORMAT):
            raise InputError(f"--store {place}: has format {version}, this version reads {FORMAT}; name another file")
        self._db.executescript(f"begin immediate; {_TABLES} pragma user_version = {FORMAT}; commit;")

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up all claims and closes the file."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("delete from claims where owner = ?", (self._owner,))
        self._db.close()

    def get(self, key: str) -> dict[str, Any] | None:
        """The document under `key`; None if there is none, or if what is there is damaged."""
        try:
            row = self._db.execute("select document, digest from results where key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self._warn(error)
            return None
        if row is None:
            return None
        if _digest(key, row[0]) != row[1]:
            self.distrust(key, "is damaged, or was made for another run")
            return None
        found: dict[str, Any] = json.loads(zlib.decompress(row[0]))
        return found

    def distrust(self, key: str, why: str) -> None:
        """Notes that what is kept under `key` is not to be used; it is made again."""
        self.trouble = self.trouble or f"result {key[:16]} in {self.path} {why}; it is simulated again"

    def put(self, key: str, document: Mapping[str, Any]) -> bool:
        """Keeps a document and ends the claim on its key; False, and `trouble` says why, if that is impossible."""
        content = zlib.compress(json.dumps(document, allow_nan=False).encode())
        row = (key, content, _digest(key, content), time.time())
        try:
            self._db.execute("begin immediate")
            self._db.execute("insert or replace into results values (?, ?, ?, ?)", row)
            self._db.execute("delete from claims where key = ?", (key,))
            self._db.execute("commit")
        except sqlite3.Error as error:
            self._roll_back()
            self._warn(error)
            return False
        return True

    def claim(self, key: str) -> bool:
        """Whether this study may work on `key`: nobody else is at it. Without a working file everybody may."""
        try:
            self._db.execute("begin immediate")
            held = self._db.execute("select owner, until from claims where key = ?", (key,)).fetchone()
            free = held is None or held[0] == self._owner or held[1] < time.time() or _gone(held[0])
            if free:
                self._db.execute("insert or replace into claims values (?, ?, ?)", self._row(key))
            self._db.execute("commit")
        except sqlite3.Error as error:
            self._roll_back()
            self._warn(error)
            return True
        return free

    def renew(self, keys: Iterable[str]) -> None:
        """Keeps claims from lapsing."""
        self._change("insert or replace into claims values (?, ?, ?)", [self._row(key) for key in keys])

    def release(self, key: str) -> None:
        """Gives up a claim."""
        self._change("delete from claims where key = ? and owner = ?", [(key, self._owner)])

    def take(self, path: Path) -> int:
        """Copies what another store has and this one lacks; how many results that was. Damaged ones are left.

        InputError for a file that is no store, or that is not there.
        """
        if not path.is_file():
            raise InputError(f"--from {path}: there is no such file")
        try:
            with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as other:
                if other.execute("pragma user_version").fetchone()[0] != FORMAT:
                    raise InputError(f"--from {path}: is no results file of this format ({FORMAT})")
                rows = other.execute("select key, document, digest, made_at from results")
                whole = [row for row in rows if _digest(row[0], row[1]) == row[2]]
        except sqlite3.Error as error:
            raise InputError(f"--from {path}: cannot be used as a results file ({error})") from None
        before = self.count()
        self._change("insert or ignore into results values (?, ?, ?, ?)", whole)
        return self.count() - before

    def count(self) -> int:
        """Number of results kept."""
        return int(self._db.execute("select count(*) from results").fetchone()[0])

    def _row(self, key: str) -> tuple[str, str, float]:
        return key, self._owner, time.time() + CLAIM_S

    def _change(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """Several rows in one transaction; what cannot be written is let go."""
        try:
            self._db.execute("begin immediate")
            self._db.executemany(statement, rows)
            self._db.execute("commit")
        except sqlite3.Error as error:
            self._roll_back()
            self._warn(error)

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("rollback")

    def _warn(self, error: sqlite3.Error | OSError) -> None:
        self.trouble = self.trouble or f"results are not kept in {self.path}: {error}"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[ResultStore]:
    """The store at `path`; what was wrong with it is a line on stderr at the end."""
    with ResultStore(path) as store:
        try:
            yield store
        finally:
            if store.trouble:
                print(f"tilewave: warning: {store.trouble}", file=sys.stderr)


def _digest(key: str, content: bytes) -> bytes:
    """What proves that a document is whole and was made for its key."""
    return hashlib.sha256(key.encode() + b"\0" + content).digest()


def _gone(owner: str) -> bool:
    """Whether an owner was a process of this machine that has ended."""
    host, pid, _ = owner.rsplit(":", 2)
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
