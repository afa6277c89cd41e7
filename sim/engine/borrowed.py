"""Private parts of numba that the engines use, and the refusal of a numba without one, at import."""

import functools
import importlib
from collections.abc import Iterable
from typing import NamedTuple

import numba

from arch.errors import InputError

NUMBA_VERSIONS = ">=0.61,<0.69"
"""Versions of numba that the tests pass with, as pyproject.toml has them."""


class Private(NamedTuple):
    """A part of numba that is no part of its interface. why: what is done with it here."""

    module: str
    name: str
    why: str


PRIVATE = (
    Private("numba.core.caching", "_CacheLocator", "says where a kernel's cache files lie, and when they are stale"),
    Private("numba.core.caching", "CompileResultCacheImpl.get_filename_base", "names a kernel's cache files"),
    Private("numba.core.caching", "CompileResultCacheImpl._locator", "is given the locator above"),
    Private("numba.core.caching", "CompileResultCacheImpl._filename_base", "is given that name"),
    Private("numba.core.caching", "CompileResultCacheImpl._lineno", "is given a kernel's first line"),
    Private("numba.core.caching", "CompileResultCacheImpl.reduce", "is wrapped: some kernels are kept without bitcode"),
    Private("numba.core.caching", "Cache._cache_file", "is replaced by files with a checksum"),
    Private("numba.core.caching", "Cache._cache_path", "is where they lie"),
    Private("numba.core.caching", "IndexDataCacheFile._load_index", "is replaced: it is checked"),
    Private("numba.core.caching", "IndexDataCacheFile._save_index", "is replaced: it gets a checksum"),
    Private("numba.core.caching", "IndexDataCacheFile._load_data", "is replaced: it is checked"),
    Private("numba.core.caching", "IndexDataCacheFile._save_data", "is replaced: it gets a checksum"),
    Private("numba.core.caching", "IndexDataCacheFile._index_name", "is the index, one more file with a checksum"),
    Private("numba.core.caching", "IndexDataCacheFile._source_stamp", "tells a stale index"),
    Private("numba.core.caching", "IndexDataCacheFile._data_path", "is the path of a file with a checksum"),
    Private("numba.core.caching", "IndexDataCacheFile._open_for_write", "writes a file as a whole"),
    Private("numba.core.caching", "IndexDataCacheFile._dump", "makes bytes of compiled code"),
    Private("numba.core.caching", "Cache._impl_class", "is replaced by a cache with all that"),
    Private("numba.core.caching", "Cache._index_key", "is what machine code that came with the package is kept by"),
    Private("numba.core.caching", "Cache._load_overload", "is called, and what it does not find is announced"),
    Private("numba.core.caching", "Cache._guard_against_spurious_io_errors", "is replaced: a full disk is no error"),
    Private("numba.core.base", "BaseContext.get_abi_sizeof", "is wrapped: a type is measured once"),
    Private("numba.core.base", "BaseContext.get_function", "is wrapped: what is not there is looked for once"),
    Private("numba.core.cgutils", "normalize_ir_text", "makes text of a part, for LLVM"),
    Private("numba.core.codegen", "JITCodeLibrary._optimize_final_module", "is wrapped: `min` inline"),
    Private("numba.core.codegen", "JITCodeLibrary._optimize_functions", "is called: a part is optimised by itself"),
    Private("numba.core.codegen", "JITCodeLibrary._final_module", "is a part, or has what is to be inlined"),
    Private("numba.core.codegen", "JITCodeLibrary._linking_libraries", "gets the parts that parts call"),
    Private("numba.core.codegen", "JITCodeLibrary._get_module_for_linking", "is replaced: a part is linked as it is"),
    Private("numba.core.codegen", "JITCodeLibrary.add_ir_module", "is replaced: a part takes one; it is forgotten"),
    Private("numba.core.codegen", "JITCodeLibrary.enable_object_caching", "is called: kernels go to the cache"),
    Private("numba.core.codegen", "JITCodeLibrary.finalize", "is replaced: a part is neither linked nor made"),
    Private("numba.core.codegen", "JITCodeLibrary._finalized", "is set by that"),
    Private("numba.core.codegen", "JITCodeLibrary.get_pointer_to_function", "is replaced: a part has no address"),
    Private("numba.core.codegen", "JITCodeLibrary.codegen", "is replaced, so that a part's environment goes nowhere"),
    Private("numba.core.codegen", "JITCPUCodegen.set_env", "is replaced: what Python calls has an environment"),
    Private("numba.core.compiler", "Compiler.compile_extra", "is wrapped by what holds while a kernel is compiled"),
    Private("numba.core.compiler", "Compiler.define_pipelines", "is wrapped: own libraries, fewer passes"),
    Private("numba.core.compiler_machinery", "PassManager.pipeline_name", "is kept, with fewer passes"),
    Private("numba.core.compiler_machinery", "PassManager.passes", "are taken over, less those for nothing"),
    Private("numba.core.cpu", "CPUTargetOptions._nrt", "switches reference counting off"),
    Private("numba.core.dispatcher", "Dispatcher._cache", "is given the cache above"),
    Private("numba.core.dispatcher", "Dispatcher.compile", "finds what a kernel is for given types, once"),
    Private("numba.core.dispatcher", "Dispatcher.get_call_template", "is wrapped: constants make no versions"),
    Private("numba.core.dispatcher", "Dispatcher.get_overload", "is replaced: a kernel that kernels call is a part"),
    Private("numba.core.errors", "termcolor", "does not colour errors that nobody sees"),
    Private("numba.core.event", "install_timer", "is replaced: no stop-watches"),
    Private("numba.core.imputils", "lower_cast", "passes a packed tuple to what is called (pack.py)"),
    Private("numba.core.imputils", "lower_getattr_generic", "reads a packed tuple (pack.py)"),
    Private("numba.core.targetconfig", "ConfigStack.top_or_none", "tells with which flags an operator is resolved"),
    Private("numba.core.types", "BaseFunction.get_call_type", "is wrapped: an operator is resolved once"),
    Private("numba.core.typing.context", "BaseContext.resolve_value_type", "is wrapped: a name's type is found once"),
    Private("numba.core.typing.templates", "infer_getattr", "types the members of a packed tuple (pack.py)"),
    Private("numba.core.types", "unliteral", "makes a variable's type of a constant's"),
    Private("numba.np.arrayobj", "fix_integer_index", "is replaced: indices count from the start"),
    Private("numba.np.arrayobj", "load_item", "is wrapped: read-only arrays do not change while a kernel runs"),
    Private("numba.np.arrayobj", "make_array", "gives the address of an array's data (search.py, prefetch.py)"),
)
"""Every private part of numba that the engines replace, wrap, set or call. A name may end in what `__init__` sets."""


def check_numba(parts: Iterable[Private] = PRIVATE) -> None:
    """InputError, in one line, for a numba that lacks one of the parts."""
    for part in parts:
        *path, last = part.name.split(".")
        try:
            owner = functools.reduce(getattr, path, importlib.import_module(part.module))
        except (ImportError, AttributeError):
            owner = None
        made = getattr(getattr(owner, "__init__", None), "__code__", None)
        if not hasattr(owner, last) and last not in getattr(made, "co_names", ()):
            raise InputError(
                f"numba {numba.__version__} has no {part.module}.{part.name}, which here {part.why}; "
                f"install 'numba{NUMBA_VERSIONS}'"
            )


check_numba()
