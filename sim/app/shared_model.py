"""A model on devices that share it, as commands that ask for one have it (`serve`, `export`)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from workloads.graphs.llama import Llama
from workloads.graphs.model import Model
from workloads.graphs.models import model_of
from workloads.ops.base import check_fields, derived_extent, extent, number_format, words
from workloads.parse import values_of

PAGE = 16
"""Tokens of a page of keys and values, vLLM's and SGLang's default."""
LATENT_PAGE = 64
"""Tokens of a page of latent vectors, which FlashMLA asks for, and with it the frameworks."""


@dataclass(frozen=True)
class SharedModel:
    """A model and the `tp` devices that share it; a command adds keys of its own.

    command: the command's word, by which errors call it.
    """

    command: ClassVar[str]

    model: str = words("a published model, or the path of a config.json")
    tp: int = extent(1, help="devices that share each layer")
    ep: int = extent(1, help="of these, devices that share out the experts, whole ones")
    page: int | None = derived_extent(help="tokens of a page of the cache; default: 16, of latent vectors 64")
    dtype: str | None = number_format("of products; default: the machine's, or bf16")

    def __post_init__(self) -> None:
        """Checks each key."""
        check_fields(self.command, self)

    @classmethod
    def of(cls, text: str) -> Self:
        """As people type it, the model first: `qwen3-32b tp=2`."""
        name, *pairs = text.split()
        return cls(**{"model": name, **values_of(cls.command, cls, pairs)})

    @functools.cached_property
    def sizes(self) -> Model:
        """Sizes of the model."""
        return model_of(self.model)

    @property
    def page_tokens(self) -> int:
        """Tokens of a page of the cache."""
        return self.page or (LATENT_PAGE if self.sizes.latent else PAGE)

    def step(self, **keys: Any) -> Llama:
        """A step on these devices, with `keys` of the operator."""
        return Llama(model=self.model, tp=self.tp, ep=self.ep, dtype=self.dtype, **keys)
