"""What is deployed: a model, the devices that share it, the requests that come, and how the server batches them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from arch.gpu import GpuSpec
from arch.spec import MachineSpec
from sim.app.report.text import bytes_text
from sim.app.shared_model import SharedModel
from workloads.graphs import Graph
from workloads.graphs.llama import EXPERTS_DTYPES, EXPERTS_DTYPES_HELP, SCALES, SCALES_HELP, Llama
from workloads.ops.base import choice, count, extent

_MOST_DOUBLINGS = 7
"""How often devices are doubled in search of what fits."""


@dataclass(frozen=True)
class Deployment(SharedModel):
    """A model, `gpus` that share it, and `concurrency` clients, each of which sends its next request when the one
    before is answered.

    A step of the server has at most `budget` tokens. With `prefill=mixed` a step decodes one token of every sequence
    and takes along as many tokens of waiting prompts as fit (chunked prefill); with `prefill=alone` steps of prompts
    come first, and have no other sequences. Lengths of prompts and answers are drawn evenly within `spread` percent.
    """

    command: ClassVar[str] = "serve"

    isl: int = extent(1024, help="tokens of a prompt")
    osl: int = extent(1024, help="tokens of an answer")
    concurrency: int = extent(16, help="requests at once")
    adp: int = extent(1, help="groups of these devices, each with attention of its own sequences")
    dp: int = extent(1, help="copies of the model, each on tp devices, that share the requests")
    budget: int = extent(2048, help="most tokens of a step")
    prefill: str = choice(
        "mixed", ("mixed", "alone"), help="prompts beside the sequences that decode, or by themselves"
    )
    spread: int = count(0, help="percent by which lengths differ from their mean; 0: all alike")
    routing: str = field(
        default="power_law_1.2",
        metadata={"kind": "words", "help": "which experts tokens take, as distribution of moe: uniform, power_law_1.2"},
    )
    sample: str = choice("0", ("0", "greedy"), help="greedy: steps choose the next token; 0: logits alone")
    host: int = count(0, help="microseconds between two steps in which the device waits for the host")
    memory: int = extent(90, help="percent of the device's memory for weights, cache and activations")
    experts_dtype: str = choice("published", EXPERTS_DTYPES, help=EXPERTS_DTYPES_HELP)
    scale: str = choice("published", SCALES, help=SCALES_HELP)

    def __post_init__(self) -> None:
        """Checks each key, and that the keys go together."""
        super().__post_init__()
        for key in ("memory", "spread"):
            if getattr(self, key) > (most := {"memory": 100, "spread": 90}[key]):
                raise InputError(f"serve {key}={getattr(self, key)}: at most {most} percent")
        if self.concurrency < self.dp:
            raise InputError(f"serve dp={self.dp}: more copies than concurrency={self.concurrency}")
        self.step(phase="decode", seq=1, page=self.page_tokens)

    def __str__(self) -> str:
        """As people type it, keys at their default left out."""
        given = (f for f in fields(self)[1:] if getattr(self, f.name) != f.default)
        return " ".join([self.model, *(f"{f.name}={getattr(self, f.name)}" for f in given)])

    @property
    def gpus(self) -> int:
        """Devices of all copies."""
        return self.tp * self.dp

    @property
    def clients(self) -> int:
        """Requests at once of one copy, of the busiest."""
        return -(-self.concurrency // self.dp)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self._most(self.isl) + self._most(self.osl)

    @property
    def _routing(self) -> str:
        """The choice of experts, of a model that has some."""
        return self.routing if self.sizes.experts else "uniform"

    def _most(self, tokens: int) -> int:
        return tokens * (100 + self.spread) // 100

    def step(self, **keys: Any) -> Llama:
        """A step of one copy: all layers with embedding and head, and `keys` of the operator."""
        whole: dict[str, Any] = {
            "layers": self.sizes.layers,
            "vocab": self.sizes.vocab,
            "sample": self.sample,
            "routing": self._routing,
            "experts_dtype": self.experts_dtype,
            "adp": self.adp,
            "scale": self.scale,
        }
        return super().step(**(whole | keys))


WHOLE_KEYS: Mapping[str, bool] = {f.name: f.metadata["kind"] == "extent" for f in fields(Deployment)}
"""Keys of a deployment, and whether their values are whole numbers."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one device. token: of the cache, of one token, which one group of `adp` has: the mean of all groups.
    free: what weights and activations leave to the cache."""

    weights: int
    activations: int
    token: int
    free: int

    @property
    def tokens(self) -> int:
        """Tokens that the cache holds."""
        return max(0, self.free) // self.token

    def sequences(self, deployment: Deployment) -> int:
        """Sequences at once whose cache has room to their last token."""
        pages = -(-deployment.longest // deployment.page_tokens)
        return self.tokens // (pages * deployment.page_tokens)

    @classmethod
    def of(cls, deployment: Deployment, machine: MachineSpec) -> Memory:
        """What a deployment needs on a machine."""
        sizes = deployment.sizes
        first = min(sizes.dense + 1, sizes.layers)  # one of the layers that repeat, and those in front of them
        op = _prefill(deployment, first).with_defaults(machine.default_dtype)
        graph = op.graph(fused=True)
        front = _weights(graph)
        layer = _weights(replace(op, layers=first + 1).graph(fused=True)) - front if sizes.layers > first else 0
        all_weights = front + (sizes.layers - first) * layer
        activations = graph.addresses()[1] - sum(graph.sizes_bytes[name] for name in graph.inputs)
        bytes_each = DTYPE_BYTES[op.between]
        token = sizes.layers * sizes.cached_elements(op.sharers) * bytes_each // deployment.adp
        room = machine.dram.size_bytes * deployment.memory // 100  # type: ignore[attr-defined]
        return cls(all_weights, activations, token, room - all_weights - activations)


def _prefill(deployment: Deployment, layers: int) -> Llama:
    """A step of prompts with as many tokens as one may have."""
    seq = min(deployment.budget, deployment.isl)
    batch = max(1, deployment.budget // seq)
    return deployment.step(layers=layers, batch=batch, seq=seq, page=deployment.page_tokens)


def _weights(graph: Graph) -> int:
    """Bytes of the weights of a graph."""
    return sum(graph.sizes_bytes[name] for name in graph.inputs if name.endswith(("_weight", "_bias")))


def fitted(deployment: Deployment, machine: MachineSpec) -> Memory:
    """The memory of a deployment; InputError, with the nearest one that fits, where no sequence has room."""
    memory = Memory.of(deployment, machine)
    if memory.sequences(deployment):
        return memory
    needs = f"weights of {bytes_text(memory.weights)} and activations of {bytes_text(memory.activations)}"
    one = f"a sequence of {deployment.longest} tokens takes {bytes_text(memory.token * deployment.longest)} of cache"
    room = f"{deployment.memory} % of {machine.name}'s memory"
    near = [str(found) for found in _nearest(deployment, machine)]
    right = f"; nearest that fits: {' or '.join(near)}" if near else "; no number of devices makes it fit"
    raise InputError(f"serve {deployment}: {needs} leave no room in {room}: {one}{right}")


def _nearest(deployment: Deployment, machine: MachineSpec) -> Iterator[Deployment]:
    """The fewest more devices with which it fits, and a narrower format if it does with that."""

    def fits(other: Deployment) -> bool:
        return Memory.of(other, machine).sequences(other) > 0

    with contextlib.suppress(InputError):  # heads cannot be shared out further
        more = (replace(deployment, tp=deployment.tp << n) for n in range(1, _MOST_DOUBLINGS))
        yield from itertools.islice(filter(fits, more), 1)
    multiplies = isinstance(machine, GpuSpec) and machine.tensor_flops_per_cycle("fp8") > 0
    if multiplies and deployment.dtype is None and fits(narrow := replace(deployment, dtype="fp8")):
        yield narrow
