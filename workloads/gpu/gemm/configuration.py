"""What every configuration of a product's kernel answers."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from arch.errors import InputError
from arch.gpu import GpuSpec
from workloads.gpu.configuration import Configuration
from workloads.gpu.gemm.estimate import Figures, Work
from workloads.gpu.gemm.problem import Problem


class GemmConfig(Configuration):
    """A configuration of a kernel that multiplies matrices."""

    on_tensor_cores: ClassVar[bool] = False
    """Whether tensor cores multiply."""

    @property
    def asynchronous(self) -> bool:
        """Whether all warps copy by cp.async what they multiply."""
        return False

    def check(self, p: Problem, spec: GpuSpec) -> None:
        """InputError if the machine or the problem cannot take this configuration."""
        raise NotImplementedError

    def work(self, p: Problem, spec: GpuSpec, f: Figures) -> Work:
        """Counts for the estimate."""
        raise NotImplementedError

    @classmethod
    def completed(cls, fields: dict[str, Any], p: Problem, spec: GpuSpec) -> dict[str, Any]:
        """The fields with what a schedule's text may leave open."""
        return fields

    @classmethod
    def of(cls, text: str, p: Problem, spec: GpuSpec) -> Self:
        """The configuration that a text describes; what it leaves out is filled in. InputError for a wrong word."""
        fields = cls.read(text)
        if any(name == "tile_n" for word in cls.grammar for name in word.fields) and "tile_n" not in fields:
            raise InputError(f"schedule={text}: the tile is missing, such as {cls.schedule} 128x128")
        return cls(**cls.completed(cls.left_out() | fields, p, spec))
