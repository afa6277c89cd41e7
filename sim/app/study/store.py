"""Results on disk, by the hash of everything that they depend on.

One SQLite file in write-ahead mode: several processes share it, a result is there whole or not at all, whatever
happens to the process or the disk in the middle of writing it. Reports of a kind have nearly the same words: the first
of each is a sample, and all are packed as what differs from it. What is read back is checked against a hash of it and
its key. A result that cannot be written is a warning, never the end of a study.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from arch.errors import InputError

FORMAT = 2
"""Version of the file's tables."""

CLAIM_S = 60.0
"""A claim that has not been renewed for so long is void."""

MOST_SAMPLE_BYTES = 1 << 15
"""As far as zlib looks back."""

FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged file raises: the second one where SQLite's text about it quotes the file."""

_BUSY_TIMEOUT_S = 30.0
_TABLES = """
create table if not exists results (
    key text primary key, kind text not null, document blob not null, digest blob not null, made_at real not null
) without rowid;
create table if not exists samples (kind text primary key, document blob not null) without rowid;
create table if not exists claims (key text primary key, owner text not null, until real not null) without rowid;
"""


def default_store() -> Path:
    """Results file in the user's cache directory. One of another format is that of another version, whose results no
    key of this one finds."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "tilewave" / f"results-{FORMAT}.sqlite"


class ResultStore:
    """Results by key; safe for any number of processes. Use as a context manager, or `close` it."""

    def __init__(self, path: Path) -> None:
        """Opens the store at `path`, made if needed; one that cannot be written keeps nothing, and `trouble` says why.

        InputError for a file that is something else.
        """
        self.path = path
        self.trouble = ""
        """Why results are not being kept, once that has happened."""
        self._samples: dict[str, bytes] = {}
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open(path)
        except (OSError, sqlite3.OperationalError) as error:
            self._warn(error)
            self._open(":memory:")
        except FAILURES as error:
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
        with contextlib.suppress(*FAILURES):
            self._db.execute("delete from claims where owner = ?", (self._owner,))
        self._db.close()

    def get(self, key: str) -> dict[str, Any] | None:
        """The document under `key`; None if there is none, or if what is there is damaged."""
        try:
            row = self._db.execute("select kind, document, digest from results where key = ?", (key,)).fetchone()
            if row is None:
                return None
            plain = _unpacked(key, row[1], row[2], self._sample(row[0]))
        except FAILURES as error:
            self._warn(error)
            return None
        if plain is None:
            self.distrust(key, "is damaged, or was made for another run")
            return None
        found: dict[str, Any] = json.loads(plain)
        return found

    def distrust(self, key: str, why: str) -> None:
        """Notes that what is kept under `key` is not to be used; it is made again."""
        self.trouble = self.trouble or f"result {key[:16]} in {self.path} {why}; it is simulated again"

    def put(self, key: str, document: Mapping[str, Any], kind: str = "") -> bool:
        """Keeps a document and ends the claim on its key; False, and `trouble` says why, if that is impossible."""
        return self.put_all([(key, kind, document)])

    def put_all(self, some: Sequence[tuple[str, str, Mapping[str, Any]]], done: Sequence[str] = ()) -> bool:
        """Keeps documents by key, of kinds whose documents are alike, and ends the claims on them and on the keys that
        are `done`, in one transaction."""

        def write() -> None:
            for key, kind, document in some:
                self._write(key, kind, json.dumps(document, allow_nan=False, separators=(",", ":")).encode())
            self._release([*(key for key, _, _ in some), *done])

        return self._at_once(write)

    def claim(self, key: str) -> bool:
        """Whether this study may work on `key`: nobody else is at it. Without a working file everybody may."""
        return bool(self.claim_all([key]))

    def claim_all(self, keys: Sequence[str]) -> list[str]:
        """Those keys on which this study may work, claimed in one transaction."""
        free: list[str] = []

        def write() -> None:
            for key in keys:
                held = self._db.execute("select owner, until from claims where key = ?", (key,)).fetchone()
                if held is None or held[0] == self._owner or held[1] < time.time() or _gone(held[0]):
                    free.append(key)
            self._db.executemany("insert or replace into claims values (?, ?, ?)", map(self._row, free))

        return free if self._at_once(write) else list(keys)

    def renew(self, keys: Iterable[str]) -> None:
        """Keeps claims from lapsing."""
        rows = [self._row(key) for key in keys]
        self._at_once(lambda: self._db.executemany("insert or replace into claims values (?, ?, ?)", rows))

    def release(self, key: str) -> None:
        """Gives up a claim."""
        self._at_once(lambda: self._release([key]))

    def take(self, path: Path) -> int:
        """Copies what another store has and this one lacks; how many results that was. Damaged ones are left.

        InputError for a file that is no store, or that is not there.
        """
        if not path.is_file():
            raise InputError(f"--from {path}: there is no such file")
        before = self.count()
        try:
            with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as other:
                if other.execute("pragma user_version").fetchone()[0] != FORMAT:
                    raise InputError(f"--from {path}: is no results file of this format ({FORMAT})")
                samples = dict(other.execute("select kind, document from samples"))
                rows = other.execute("select key, kind, document, digest from results")
                self._at_once(lambda: self._take(rows, samples))
        except FAILURES as error:
            raise InputError(f"--from {path}: cannot be used as a results file ({error})") from None
        return self.count() - before

    def _take(self, rows: Iterable[tuple[str, str, bytes, bytes]], samples: Mapping[str, bytes]) -> None:
        known = {key for (key,) in self._db.execute("select key from results")}
        for key, kind, content, digest in rows:
            plain = _unpacked(key, content, digest, samples.get(kind, b""))
            if plain is not None and key not in known:
                self._write(key, kind, plain)

    def count(self) -> int:
        """Number of results kept."""
        return int(self._db.execute("select count(*) from results").fetchone()[0])

    def _row(self, key: str) -> tuple[str, str, float]:
        return key, self._owner, time.time() + CLAIM_S

    def _write(self, key: str, kind: str, plain: bytes) -> None:
        """Writes a document; the first of its kind is its sample."""
        if not self._sample(kind):
            self._samples[kind] = plain[-MOST_SAMPLE_BYTES:]
            self._db.execute("insert into samples values (?, ?)", (kind, self._samples[kind]))
        packer = zlib.compressobj(9, zdict=self._samples[kind])
        content = packer.compress(plain) + packer.flush()
        row = (key, kind, content, _digest(key, content), time.time())
        self._db.execute("insert or replace into results values (?, ?, ?, ?, ?)", row)

    def _sample(self, kind: str) -> bytes:
        """What documents of a kind are packed against; empty before the first."""
        if kind not in self._samples:
            row = self._db.execute("select document from samples where kind = ?", (kind,)).fetchone()
            if row is None or not isinstance(row[0], bytes):  # a damaged one is nobody's
                return b""
            self._samples[kind] = row[0]
        return self._samples[kind]

    def _release(self, keys: Iterable[str]) -> None:
        rows = [(key, self._owner) for key in keys]
        self._db.executemany("delete from claims where key = ? and owner = ?", rows)

    def _at_once(self, write: Callable[[], object]) -> bool:
        """What is written in one transaction; False where it cannot be, and nothing of it is."""
        try:
            self._db.execute("begin immediate")
            write()
            self._db.execute("commit")
        except FAILURES as error:
            self._samples.clear()
            self._roll_back()
            self._warn(error)
            return False
        return True

    def _roll_back(self) -> None:
        with contextlib.suppress(*FAILURES):
            self._db.execute("rollback")

    def _warn(self, error: Exception) -> None:
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


def _unpacked(key: str, content: bytes, digest: bytes, sample: bytes) -> bytes | None:
    """A document as it was before it was packed; None if it is damaged, or was made for another key."""
    if _digest(key, content) != digest:
        return None
    try:
        return zlib.decompressobj(zdict=sample).decompress(content)
    except zlib.error:
        return None


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
