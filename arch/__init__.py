"""What a machine is: validated descriptions, one YAML preset a machine, every figure with its source.

Names are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arch.errors import InputError
    from arch.gpu import GpuSpec
    from arch.library import list_archs
    from arch.load import load_arch
    from arch.show import describe, json_schema
    from arch.spec import MachineSpec

_HOMES = {
    "InputError": "errors",
    "GpuSpec": "gpu",
    "list_archs": "library",
    "load_arch": "load",
    "describe": "show",
    "json_schema": "show",
    "MachineSpec": "spec",
}

__all__ = ["GpuSpec", "InputError", "MachineSpec", "describe", "json_schema", "list_archs", "load_arch"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'arch' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"arch.{_HOMES[name]}"), name)
