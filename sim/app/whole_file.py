"""Files that are there as a whole or not at all, whatever stops their writing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a file beside `path` to write to, which takes its place at the end; an error leaves `path` as it was.

    What is no regular file, such as /dev/stdout, is written to itself. Raises OSError.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}.", suffix=target.suffix)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(target.stat().st_mode if target.exists() else 0o644)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
