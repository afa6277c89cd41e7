"""LLVM modules: of a kernel that Python calls, and of the parts that are linked into it.

Numba links each function with all that it calls, checks it, optimises it and makes machine code of it. A part has
nothing but its own code, optimised by itself, and the kernel takes all parts, also those that parts call, once.
"""

from typing import Any

import llvmlite.binding
from numba.core import cgutils, codegen

import sim.engine.borrowed  # noqa: F401  (first: it refuses a numba without what is used here)

_BUILTINS = "_ZN5numba7cpython8builtins"
"""How names of what numba has for Python's own functions begin, mangled."""


class PartLibrary(codegen.JITCodeLibrary):
    """A function that is linked into its callers, which optimise it with theirs."""

    def add_ir_module(self, ir_module: Any) -> None:
        """The function, as numba has written it: the one module of a part."""
        for function in ir_module.functions:
            if function.blocks and not function.linkage:
                function.linkage = "linkonce_odr"  # what several parts and kernels may have, and nobody has to keep
        module = llvmlite.binding.parse_assembly(cgutils.normalize_ir_text(str(ir_module)))
        module.name = ir_module.name
        self._optimize_functions(module)
        self._final_module = module
        _forget(ir_module)

    def finalize(self) -> None:
        """Nothing: it is as its callers take it."""
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        return self._final_module

    def get_pointer_to_function(self, name: str) -> int:
        """No address, as there is no machine code."""
        return 0

    @property
    def codegen(self) -> Any:
        """Who numba tells of a function's environment."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Nothing: what Python calls has an environment."""


class KernelLibrary(codegen.JITCodeLibrary):
    """Code that Python calls. It has numba's own `min` and `max` inline: LLVM leaves calls of them, 150 in the engine's
    loop, among which it keeps few values in registers."""

    def add_ir_module(self, ir_module: Any) -> None:
        """The kernel, and again what unpacks Python's arguments for it."""
        super().add_ir_module(ir_module)
        _forget(ir_module)

    def finalize(self) -> None:
        """Link it, optimise it, make machine code of it."""
        self._linking_libraries[:] = _with_called(self._linking_libraries)
        super().finalize()

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if function.name.startswith(_BUILTINS) and not function.is_declaration:
                function.add_function_attribute("alwaysinline")
        super()._optimize_final_module()


def _with_called(libraries: list[Any]) -> list[Any]:
    """Libraries and those that their parts call, over all steps, each once."""
    found = dict.fromkeys(libraries)
    waiting = list(found)
    while waiting:
        library = waiting.pop()
        called = library._linking_libraries if isinstance(library, PartLibrary) else ()
        new = [other for other in dict.fromkeys(called) if other not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return list(found)


def _forget(ir_module: Any) -> None:
    """Take apart what LLVM has read: its pieces refer to each other, and nobody looks for garbage during a compile."""
    for function in ir_module.functions:
        for block in function.blocks:
            block.instructions.clear()
            block.terminator = None
        function.blocks.clear()
        function.args = ()
    ir_module.globals.clear()
