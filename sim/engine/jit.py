"""The project's jit decorator: fast helper calls, and a compile cache that cannot be stale.

Every function of a kernel file is made with :func:`kernel`. It is ``numba.njit`` with

- reference counting off (``_nrt=False``): branchy helpers that take arrays run up to 28 times faster, and an allocation
  inside a kernel is a compile error;
- ``error_model="numpy"``: no test for a zero divisor in front of each division;
- indices that count from the start: no test for a negative one in front of each access;
- elements of read-only arrays that are read once, whatever is written between two uses;
- a compile cache of its own. ``cache=True`` alone keys a function by its own file only and returns an old result after
  a helper in another file changed. Here the cache directory carries the hash of every source that a kernel can depend
  on (its file and what that imports of ours), of the versions below it, and of the modes that change the code.

Some of that replaces private parts of numba: `sim.engine.borrowed` names each, and refuses a numba without one. While a
kernel is compiled numba does less than it does by itself (`compiling.py`, `passes.py`, `library.py`): a cold compile
takes 70 % of the time. Nothing outside these functions is touched: neither environment nor numba's configuration, so
the jitted functions of a program that imports us keep their own cache directories.
"""

import contextlib
import functools
import gc
import hashlib
import inspect
import os
import pickle
import platform
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, overload

import llvmlite
import llvmlite.binding
import numba
import numpy
from numba.core import caching, compiler, config, types
from numba.np import arrayobj

import sim.engine.borrowed  # noqa: F401  (first: it refuses a numba without what is used here)
from arch.extensions import REPLACEMENTS, SCHEDULERS, registered
from sim.engine.compiling import quick, say_compiling
from sim.engine.library import KernelLibrary, PartLibrary
from sim.engine.pack import called_with
from sim.engine.passes import passes

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
"""The ``sim`` package: kernels live below it."""

_EXTENSIONS = PACKAGE_ROOT / "engine" / "extensions.py"
"""What imports it is compiled with policies of other packages."""

_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)(?:[ \t]+import[ \t]+(\([^)]*\)|[^\n]*))?", re.MULTILINE)
_TYPES_ONLY = re.compile(r"^if TYPE_CHECKING:\n(?:(?:[ \t]+[^\n]*)?\n)+", re.MULTILINE)

_DIRECTORY_PREFIX = "kernels-"
_KEEP_UNUSED_S = 7 * 24 * 3600
_KEEP_ALWAYS_S = 3600
_KEEP_COUNT = 64
_CODE_MODES = (
    "BOUNDSCHECK",
    "OPT",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
    "ENABLE_AVX",
    "DEBUGINFO_DEFAULT",
)

READY = PACKAGE_ROOT / "ready"
"""Machine code that a wheel brings (`scripts/wheel` puts it there): a cache directory for each key."""

LEVEL = "x86-64-v3"
"""The CPUs that it is for: those with these instructions, which servers and laptops of the last ten years have."""

_LEVEL_FEATURES = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")


def kernel_sources(file: Path) -> list[Path]:
    """Files that the kernels of a file can depend on, in a fixed order: itself and, over all steps, what it imports.

    numba freezes helpers, constants and enums into the code; all come in by an import of the project's packages.
    """
    found = {file}
    waiting = [file]
    while waiting:
        new = set(_imported_files(waiting.pop())) - found
        found |= new
        waiting += new
    return sorted(found)


@functools.cache
def _imported_files(file: Path) -> tuple[Path, ...]:
    """Files of the project that a file imports by name, packages' own files included.

    What stands below `if TYPE_CHECKING:` is not there at run time and cannot be frozen into code.
    """
    names: set[str] = set()
    source = _TYPES_ONLY.sub("", file.read_text(encoding="utf-8"))
    for module, what in _IMPORT.findall(source):
        names |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", what))}
    return tuple(sorted({path for name in names for path in _files_of(name) if path != file}))


@functools.cache
def _files_of(name: str) -> tuple[Path, ...]:
    """Files of a module or package of the project; none of any other name."""
    place = PACKAGE_ROOT.parent
    *folders, last = name.split(".")
    for folder in folders:
        if folder not in _listed(place):
            return ()
        place = place / folder
    found = [place / f"{last}.py"] if f"{last}.py" in _listed(place) else []
    if last in _listed(place) and "__init__.py" in _listed(place / last):
        found.append(place / last / "__init__.py")
    return tuple(found)


@functools.cache
def _listed(folder: Path) -> frozenset[str]:
    """Names in a folder; none in what is no folder."""
    try:
        return frozenset(os.listdir(folder))
    except NotADirectoryError:
        return frozenset()


def cache_key(sources: Iterable[Path], level: str = "") -> str:
    """Hash of the sources, of the policies of other packages that they are compiled with, of the versions that generate
    code, of the CPU and of the modes that change the code. level: of CPUs, in place of this one."""
    sources = list(sources)
    digest = hashlib.sha256()
    if _EXTENSIONS in sources:
        for group in (SCHEDULERS, REPLACEMENTS):
            digest.update("".join(f"{policy.name} {policy.sha256};" for policy in registered(group)).encode())
    versions = (numba.__version__, llvmlite.__version__, numpy.__version__, sys.implementation.cache_tag)
    chosen, features = getattr(config, "CPU_NAME", None), getattr(config, "CPU_FEATURES", None)
    cpu = (level, "") if level else (chosen or llvmlite.binding.get_host_cpu_name(), features)
    machine = (sys.platform, platform.machine(), *cpu)
    modes = tuple((name, getattr(config, name, None)) for name in _CODE_MODES)
    digest.update(repr((versions, machine, modes)).encode())
    for path in sources:
        content = path.read_bytes()
        digest.update(f"{path.parent.name}/{path.name}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()[:24]


def cache_roots() -> list[Path]:
    """Places for cache directories, best first: the user's numba cache, the package, the user's cache, temporary."""
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    numba_cache: str = getattr(config, "CACHE_DIR", "")
    chosen = [Path(numba_cache) / "tilewave"] if numba_cache else []
    owner = os.getuid() if hasattr(os, "getuid") else 0
    return [
        *chosen,
        PACKAGE_ROOT / "__pycache__" / "tilewave",
        Path(user) / "tilewave",
        Path(tempfile.gettempdir()) / f"tilewave-{owner}",
    ]


def usable_directory(root: Path, name: str) -> Path | None:
    """``root/name``, made if needed; None where it cannot be written or where somebody else could write to it.

    A cache file is unpickled, so a directory that another user owns or may write to, by its group too, is never used,
    nor is one behind a symbolic link.
    """
    path = root / name
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        for place in (root, path):
            place.mkdir(mode=0o700, exist_ok=True)
            if hasattr(os, "getuid"):
                info = place.lstat()
                ours = stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid()
                if not ours or info.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
                    return None
        tempfile.TemporaryFile(dir=path).close()
        os.utime(path)
    except OSError:
        return None
    return path


def prune(root: Path, keep: str, now_s: float | None = None) -> None:
    """Remove cache directories of other keys: unused for a week, or beyond the 64 newest and unused for an hour.

    The hour protects another version of the program that runs right now.
    """
    now = time.time() if now_s is None else now_s
    with contextlib.suppress(OSError):
        others = [path for path in root.glob(f"{_DIRECTORY_PREFIX}*") if path.is_dir() and path.name != keep]
        idle = sorted((now - path.stat().st_mtime, path.name, path) for path in others)
        for rank, (idle_s, _, path) in enumerate(idle):
            if idle_s > _KEEP_UNUSED_S or (rank >= _KEEP_COUNT and idle_s > _KEEP_ALWAYS_S):
                shutil.rmtree(path, ignore_errors=True)


@functools.cache
def cache_directory(file: Path) -> Path:
    """The directory in which this process keeps the compiled kernels of a file."""
    name = _DIRECTORY_PREFIX + cache_key(kernel_sources(file))
    for root in cache_roots():
        fresh = not (root / name).exists()
        path = usable_directory(root, name)
        if path is not None:
            if fresh:
                prune(root, keep=name)
            return path
    # Nothing persistent is writable: compile once for this process.
    return Path(tempfile.mkdtemp(prefix="tilewave-"))


@functools.cache
def ready_directory(file: Path) -> Path | None:
    """The directory of a file's machine code that came with the package; None where none is for these versions and this
    CPU."""
    has = llvmlite.binding.get_host_cpu_features()
    if not READY.is_dir() or not all(has.get(name) for name in _LEVEL_FEATURES):
        return None
    path = READY / (_DIRECTORY_PREFIX + cache_key(kernel_sources(file), LEVEL))
    return path if path.is_dir() else None


class _KernelLocator(caching._CacheLocator):
    """Puts a kernel's cache files into :func:`cache_directory`; the stamp covers the function's own file as well."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.file = Path(inspect.getfile(function))
        self._line = function.__code__.co_firstlineno
        self._module = function.__module__

    def get_cache_path(self) -> str:
        return str(cache_directory(self.file))

    def get_source_stamp(self) -> str:
        return hashlib.sha256(self.file.read_bytes()).hexdigest()

    def get_disambiguator(self) -> str:
        # Not where the file lies: the directory's key covers what is in it, so that copies of one version share.
        return hashlib.sha256(f"{self._module}:{self.file.name}".encode()).hexdigest()[:10] + f"-{self._line}"


class _KernelCacheImpl(caching.CompileResultCacheImpl):
    alone = False
    """Whether no other kernel calls it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = _KernelLocator(function)
        self._filename_base = self.get_filename_base(function.__qualname__, getattr(sys, "abiflags", ""))

    def reduce(self, cres: Any) -> Any:
        """What goes to the cache: machine code, and the bitcode of which a caller's code is made. A third of a warm
        start's time after its imports is to read that of an engine, which has no caller: only its names are kept."""
        kept = super().reduce(cres)
        if not self.alone:
            return kept
        (name, kind, (machine_code, _)), *rest = kept
        return (name, kind, (machine_code, _names(cres.library._final_module))), *rest


def _names(module: Any) -> Any:
    """Bitcode that defines the names of a module's functions and nothing else: numba looks up in machine code what it
    finds here."""
    defined = [function.name for function in module.functions if not function.is_declaration]
    return llvmlite.binding.parse_assembly("\n".join(f'@"{name}" = global i8 0' for name in defined)).as_bitcode()


class _CheckedFiles(caching.IndexDataCacheFile):
    """Numba's cache files, each behind a hash of its name and contents: what was damaged on the disk is machine code,
    and would be run."""

    def _load_index(self) -> Any:
        try:
            stamp, overloads = self._load_data(self._index_name)
        except (OSError, pickle.UnpicklingError):
            return {}
        return overloads if stamp == self._source_stamp else {}

    def _save_index(self, overloads: Any) -> None:
        self._save_data(self._index_name, (self._source_stamp, overloads))

    def _load_data(self, name: str) -> Any:
        content = memoryview(Path(self._data_path(name)).read_bytes())
        if content[:_DIGEST_BYTES] != _digest(name, content[_DIGEST_BYTES:]):
            raise pickle.UnpicklingError(f"{name} is damaged")
        return pickle.loads(content[_DIGEST_BYTES:])

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(_digest(name, content))
            file.write(content)


_DIGEST_BYTES = 32


def _digest(name: str, content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(name.encode() + b"\0")
    digest.update(content)
    return digest.digest()


class _KernelCache(caching.Cache):
    """Numba's cache with our locator. A full disk or a damaged file costs a compile, not the run.

    announce: what to say on stderr when nothing is found, because the compile that follows takes long.
    """

    _impl_class: Any = _KernelCacheImpl

    def __init__(self, function: Callable[..., Any], announce: str) -> None:
        super().__init__(function)
        of_numba = self._cache_file
        self._cache_file = _CheckedFiles(self._cache_path, self._impl.filename_base, of_numba._source_stamp)
        self._announce = announce
        self._impl.alone = bool(announce)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = None
        # numba fills its tables of all that it can compile first, a quarter of a warm start: machine code that is there
        # needs none of it.
        with self._guard_against_spurious_io_errors():
            found = self._load_overload(sig, target_context)
            if found is None:
                found = self._load_ready(sig, target_context)
        if found is None and self._announce:
            say_compiling(self._announce)
        return found

    def _load_ready(self, sig: Any, target_context: Any) -> Any:
        """Machine code that came with the package, which numba knows by the CPU that it was made for."""
        directory = ready_directory(self._impl.locator.file)
        if directory is None:
            return None
        came = _CheckedFiles(str(directory), self._impl.filename_base, self._cache_file._source_stamp)
        sig, (triple, _, _), code = self._index_key(sig, target_context.codegen())
        data = came.load((sig, (triple, LEVEL, ""), code))
        return None if data is None else self._impl.rebuild(target_context, data)

    @contextlib.contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
            yield


@overload
def kernel(function: F) -> F: ...


@overload
def kernel(function: None = None, *, inline: bool = False, announce: str = "") -> Callable[[F], F]: ...


def kernel(function: Any = None, *, inline: bool = False, announce: str = "") -> Any:
    """Compile a function as a kernel that Python can call; see the module's text for what that means.

    With ``inline`` the function is merged into its callers by LLVM: for small helpers on the hottest path. ``announce``
    is said on stderr before a compile for types that the cache does not have: of an engine, which Python alone calls.
    Under ``NUMBA_DISABLE_JIT=1`` the
    function comes back as it is.
    """
    if function is None:
        return functools.partial(kernel, inline=inline, announce=announce)
    return _compile(function, inline=inline, entry=True, announce=announce)


@overload
def inner(function: F) -> F: ...


@overload
def inner(function: None = None, *, inline: bool = False) -> Callable[[F], F]: ...


def inner(function: Any = None, *, inline: bool = False) -> Any:
    """Compile a function that only kernels call: a kernel without the entry from Python.

    It has neither the code that unpacks Python arguments, which is larger than many kernels, nor machine code, nor a
    place in the cache: its callers have it all. A cold compile takes half of the time.
    """
    if function is None:
        return functools.partial(inner, inline=inline)
    return _compile(function, inline=inline, entry=False)


def resolved(function: Any, *args: Any) -> Any:
    """What a kernel calls for arguments of the types of `args`.

    Looking the types up takes longer than many calls where arguments are tuples of arrays.
    """
    return function.compile(tuple(map(numba.typeof, args))) if hasattr(function, "compile") else function


class _Compiler(compiler.Compiler):
    """Numba's compiler, but an index counts from the start; with ``NUMBA_BOUNDSCHECK=1`` a negative one is an error."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        with _own_arrays():
            return super().compile_extra(func)


@contextlib.contextmanager
def _own_arrays() -> Iterator[None]:
    """How arrays are read while a kernel of ours is compiled (numba compiles one function at a time)."""
    fix, load = arrayobj.fix_integer_index, arrayobj.load_item
    if fix is _as_it_is:  # within the compile of what calls it
        yield
        return
    arrayobj.fix_integer_index = _as_it_is
    arrayobj.load_item = functools.partial(_load_item, load)
    try:
        yield
    finally:
        arrayobj.fix_integer_index, arrayobj.load_item = fix, load


def _load_item(load: Callable[..., Any], context: Any, builder: Any, array: Any, pointer: Any) -> Any:
    """An element of an array; that of a read-only one stays what it is, whatever is written elsewhere."""
    value = load(context, builder, array, pointer)
    if not array.mutable and hasattr(value, "set_metadata"):
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def _as_it_is(context: Any, builder: Any, index_type: Any, index: Any, size: Any) -> Any:
    return context.cast(builder, index, index_type, types.intp)


class _PartCompiler(_Compiler):
    """Compiles what only kernels call."""

    library: Any = PartLibrary

    def define_pipelines(self) -> Any:
        state = self.state
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        return passes(super().define_pipelines, state.func_id.func)


class _KernelCompiler(_PartCompiler):
    """Compiles a kernel with all that it calls. Nothing of that becomes garbage before the end, so none is looked for:
    that took a tenth of the time."""

    library: Any = KernelLibrary

    def define_pipelines(self) -> Any:
        pipelines = super().define_pipelines()
        self.state.library.enable_object_caching()  # as numba does with a library that it makes itself
        return pipelines

    def compile_extra(self, function: Any) -> Any:
        collects = gc.isenabled()
        gc.disable()
        try:
            with quick():
                return super().compile_extra(function)
        finally:
            if collects:
                gc.enable()


def _compile(function: Any, *, inline: bool, entry: bool, announce: str = "") -> Any:
    compiled = _dispatcher(function, inline, entry)
    if compiled is not function:
        # To its callers a kernel is a part as any other: code that Python can call is made when Python calls it.
        part = _dispatcher(function, inline, entry=False) if entry else compiled
        compiled.get_call_template = functools.partial(_call_template, part.get_call_template, inline)
        compiled.get_overload = part.get_overload
        if entry:
            compiled._cache = _KernelCache(function, announce)
    return compiled


def _dispatcher(function: Any, inline: bool, entry: bool) -> Any:
    njit: Any = numba.njit  # its type hints do not know the private flag
    return njit(
        _nrt=False,
        error_model="numpy",
        forceinline=inline,
        no_cpython_wrapper=not entry,
        no_cfunc_wrapper=True,
        pipeline_class=_KernelCompiler if entry else _PartCompiler,
    )(function)


def _call_template(find: Callable[..., Any], inline: bool, args: Any, keywords: Any) -> Any:
    """What a call compiles, by `find`: the same code whether an argument is a constant of the source or a variable.

    A function that is not inlined gets the far copies of packed tuples.
    """

    def passed(kind: Any) -> Any:
        kind = types.unliteral(kind)
        return kind if inline else called_with(kind)

    return find([passed(a) for a in args], {name: passed(a) for name, a in keywords.items()})
