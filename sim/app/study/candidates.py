"""What simulations of candidates gave, in the store of results: a choice that was made before is not made again."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path

from arch.errors import InputError
from sim.app.families.choice import RememberedRun
from sim.app.families.request import Request
from sim.app.study.case import key_of
from sim.app.study.store import ResultStore, default_store


class Candidates:
    """Of one request. The store is opened when there is something to choose; one that cannot be used keeps nothing."""

    def __init__(self, request: Request, path: Path | None = None) -> None:
        """path: of the store; default: that of studies."""
        self._request = request
        self._path = path
        self._store: ResultStore | None = None

    def get(self, schedule: str) -> RememberedRun | None:
        """What the simulation of a schedule gave; None if it is not known."""
        document = self._opened().get(self._key(schedule))
        try:
            return None if document is None else RememberedRun(**document)
        except TypeError:
            return None

    def put(self, schedule: str, kept: RememberedRun) -> None:
        """Remembers what it gave."""
        self._opened().put(self._key(schedule), asdict(kept))

    def close(self) -> None:
        """Closes the store, if it was opened."""
        if self._store is not None:
            self._store.close()

    def _opened(self) -> ResultStore:
        if self._store is None:
            try:
                self._store = ResultStore(self._path or default_store())
            except InputError:  # nobody has asked for this file
                self._store = ResultStore(Path(":memory:"))
        return self._store

    def _key(self, schedule: str) -> str:
        """What the time of a candidate depends on: neither how it was chosen nor what is checked afterwards."""
        asked = replace(self._request, schedule=schedule, without=(), tune=False, check=False)
        return hashlib.sha256(f"candidate {key_of(asked)}".encode()).hexdigest()
