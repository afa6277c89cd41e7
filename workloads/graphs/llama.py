"""Decoders such as Llama: prefill of a prompt, or one step of decoding with a cache of keys and values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from arch.dtypes import DTYPE_BYTES
from arch.errors import InputError
from workloads.graphs.graph import OTHERS, Graph, GraphBuilder, GraphOperator, Value
from workloads.graphs.model import Latent, Model
from workloads.graphs.models import model_of
from workloads.ops import packed
from workloads.ops.attention import Attention
from workloads.ops.base import choice, count, derived_extent, extent, number_format, operator, words
from workloads.ops.gemm import SCALE_BLOCK, Gemm
from workloads.ops.lengths import lengths, listed
from workloads.ops.lookups import Gather, KvWrite
from workloads.ops.moe import Moe
from workloads.ops.pointwise import Pointwise
from workloads.ops.rowwise import Argmax, LayerNorm, Quantize, RmsNorm

EXPERTS_DTYPES = ("published", "same", *packed.FORMS)
EXPERTS_DTYPES_HELP = "of experts' weights; same: that of products; published: of the checkpoint, where it has few bits"
SCALES = ("published", "tensor", "block")
SCALES_HELP = "of products in fp8, by tensor or by block of 128; published: as the checkpoint has them"
_SIZES = {
    "hidden": "hidden", "heads": "heads", "kv_heads": "kv_heads", "head_dim": "head_dim", "intermediate": "ffn",
    "experts": "experts", "topk": "topk",
}  # fmt: skip
"""Keys that stand for a size of the model, and what it is called there."""


@operator("llama", example="model=llama3-8b phase=decode seq=2k")
@dataclass(frozen=True)
class Llama(GraphOperator):
    """Decoder layers: norm, attention with rotary positions and grouped queries, norm, gated linear unit or experts.

    `phase=prefill` runs `seq` tokens of each sequence at once, `phase=decode` one token that sees `seq` keys, its own
    included. `tp` devices share the heads and the gated layer. Attention is one operator in every form, as in
    PyTorch. Rotary positions are four element-by-element operators (half a turn, two products, a sum), fused one; their
    tables of cosines stay in caches and are not counted.

    With `page=n` keys and values lie in a cache in pages, which `kv_write` fills; sequences there may have lengths of
    their own (`seqlens`, in the place of `seq`). With `vocab=n` the embedding comes
    first, and the norm and the product that give the logits of each sequence's last token come last; devices share
    both tables by their rows. Sizes that are given stand in the place of the model's.

    A server prefills prompts in chunks: with `past=n` each sequence has `n` tokens in its cache already, and with
    `prompts=n` a step of decoding takes along the next `chunk` tokens of `n` prompts, whose cache has `past` each.
    With `ep=n` experts are shared out over `n` of the `tp` devices, and each of them over the others. With `adp=n`
    attention, dense layers, embedding and head are of `n` groups of the devices, each with sequences of its own, as
    servers run models whose keys are the same for all heads; around the experts the groups gather their tokens, and
    scatter the sums. `experts_dtype` is the format in which experts' weights are stored. With `dtype=fp8`,
    `scale=block` gives products of layers, and experts, scales by block of 128; what they take is quantised likewise.

    With `overlap=1` the sequences are two halves: sums over devices of one half run on a second stream, beside the
    kernels of the other half. Each half reads all weights.
    """

    model: str = dataclasses.field(
        default="llama3-8b",
        metadata={"kind": "words", "help": "sizes: a published model, or the path of a config.json"},
    )
    phase: str = choice(
        "prefill",
        ("prefill", "decode", "training", "encode"),
        help="prefill: the whole prompt; decode: one more token; training: forward and backward pass of one layer; "
        "encode: the encoder of sound of a model that has one",
    )
    batch: int = extent(1, help="sequences")
    seq: int = extent(2048, help="tokens of a sequence")
    layers: int = extent(1, help="layers that are run")
    tp: int = extent(1, help="devices that share each layer")
    ep: int = extent(1, help="of these, devices that share out the experts, whole ones")
    adp: int = extent(1, help="groups of these devices, each with attention of its own sequences")
    overlap: str = choice("0", ("0", "1"), help="1: sums of one half of the batch beside kernels of the other half")
    page: int = count(0, help="keys of a page of a cache in pages; 0: the keys of a sequence lie together")
    seqlens: str | None = words("tokens of each sequence: numbers, a file or a distribution; default: seq of each")
    seed: int = count(0, help="of lengths that are drawn")
    past: int = count(0, help="tokens of each prompt that are in its cache already")
    prompts: int = count(0, help="prompts that a step of decoding prefills beside")
    chunk: int = extent(512, help="new tokens of each of these prompts")
    vocab: int = count(0, help="tokens of the vocabulary, with embedding and head; 0: layers alone")
    sample: str = choice("0", ("0", "greedy"), help="greedy: the next token from the logits; 0: logits alone")
    hidden: int | None = derived_extent(help="elements of a token's vector; default: the model's")
    heads: int | None = derived_extent(help="query heads; default: the model's")
    kv_heads: int | None = derived_extent(help="key and value heads; default: the model's")
    head_dim: int | None = derived_extent(help="elements of a head's vector; default: hidden / heads")
    intermediate: int | None = derived_extent(help="elements inside a gated layer or expert; default: the model's")
    experts: int | None = count(None, help="experts of a layer, 0: one gated layer; default: the model's")
    topk: int | None = derived_extent(help="experts that a token takes; default: the model's, or 2")
    routing: str = dataclasses.field(
        default="uniform",
        metadata={"kind": "words", "help": "which experts tokens take, as distribution of moe: uniform, power_law_1.2"},
    )
    experts_dtype: str = choice("published", EXPERTS_DTYPES, help=EXPERTS_DTYPES_HELP)
    scale: str = choice("published", SCALES, help=SCALES_HELP)
    dtype: str | None = number_format("of all tensors, of 8 bits those of products; default: the machine's, or bf16")
    others: str = choice("refuse", OTHERS, help="operators that the machine cannot run")

    def __post_init__(self) -> None:
        """Checks that the model has so many layers and that devices share it evenly."""
        super().__post_init__()
        sizes, own = self.sizes, any(getattr(self, key) is not None for key in _SIZES)
        most = sizes.encoder_layers if self.phase == "encode" and sizes.frames else sizes.layers
        if self.layers > most and not own:
            raise InputError(f"llama layers={self.layers}: {self.model} has {most}")
        if self.phase == "training" and self.layers != 1:
            raise InputError(f"llama layers={self.layers}: phase=training runs one layer; nearest: layers=1")
        if self.seqlens is not None:
            if not self.page:
                raise InputError(f"llama seqlens={self.seqlens}: needs a cache in pages; nearest: page=16 beside it")
            object.__setattr__(self, "seqlens", listed("llama seqlens", self.seqlens))
            lengths("llama seqlens", self.seqlens, self.batch, self.seed)
        self._check_sizes(sizes)
        self._check_overlap()
        self._check_prompts()
        self._check_kind(sizes)
        self._check_shares(sizes)

    def _check_shares(self, sizes: Model) -> None:
        """InputError for devices that do not share evenly."""
        if self.adp > 1 and (self.tp % self.adp or not sizes.experts or self.seqlens is not None):
            near = max(d for d in range(1, self.adp + 1) if self.tp % d == 0)
            rule = f"must divide tp={self.tp} of a model with experts, sequences of one length; nearest below: {near}"
            raise InputError(f"llama adp={self.adp}: {rule}")
        fits = [d for d in range(1, sizes.heads + 1) if sizes.heads % d == 0 and sizes.ffn % d == 0]
        fits = [d for d in fits if sizes.kv_heads % d == 0 or d % sizes.kv_heads == 0]
        if self.sharers not in fits:
            near = max(d for d in fits if d <= self.sharers) * self.adp
            raise InputError(f"llama tp={self.tp}: must share out {sizes.kv_heads} key heads; nearest below: {near}")
        groups = [d for d in range(1, self.tp + 1) if self.tp % d == 0 and max(sizes.experts, 1) % d == 0]
        if self.ep not in groups:
            near = max(d for d in groups if d <= self.ep)
            raise InputError(
                f"llama ep={self.ep}: must divide tp={self.tp} and experts={sizes.experts}; nearest below: {near}"
            )

    def _check_sizes(self, sizes: Model) -> None:
        """InputError for sizes that do not go together."""
        if sizes.hidden % sizes.heads and not self.head_dim:
            below = max(d for d in range(1, sizes.heads + 1) if sizes.hidden % d == 0)
            rule = f"must divide hidden={sizes.hidden} where head_dim is not given"
            raise InputError(f"llama heads={sizes.heads}: {rule}; nearest below: {below}")
        if sizes.heads % sizes.kv_heads:
            below = max(d for d in range(1, min(sizes.heads, sizes.kv_heads) + 1) if sizes.heads % d == 0)
            raise InputError(
                f"llama kv_heads={sizes.kv_heads}: must divide heads={sizes.heads}; nearest below: {below}"
            )
        if self.topk is not None and not sizes.experts:
            raise InputError(f"llama topk={self.topk}: {self.model} has no experts; nearest: experts=8 beside it")
        if sizes.experts and sizes.topk > sizes.experts:
            raise InputError(f"llama topk={sizes.topk}: at most experts={sizes.experts}")

    def _check_overlap(self) -> None:
        """InputError for what has no two halves, or no sums over devices."""
        if self.overlap == "0":
            return
        if self.adp > 1:
            raise InputError(f"llama adp={self.adp}: overlap=1 is of devices that share attention; nearest: adp=1")
        if self.tp == 1:
            raise InputError("llama overlap=1: one device has no sums over devices; nearest: tp=2 beside it")
        if self.batch % 2:
            raise InputError(f"llama batch={self.batch}: overlap=1 halves it; nearest: {self.batch + 1}")
        if self.seqlens is not None:
            raise InputError(f"llama seqlens={self.seqlens}: overlap=1 needs sequences of one length; nearest: seq")

    def _check_kind(self, sizes: Model) -> None:
        """InputError for what encoders and models with a table of positions do not have."""
        if self.phase == "encode" and (not sizes.frames or self.seq != sizes.frames or self.page):
            rule = f"seq={sizes.frames} without pages" if sizes.frames else "a model that has an encoder, whisper-tiny"
            raise InputError(f"llama phase=encode: the frames of an encoder of sound; nearest: {rule}")
        if sizes.encoder and (self.phase != "prefill" or self.page):
            key = f"page={self.page}" if self.page else f"phase={self.phase}"
            raise InputError(f"llama {key}: {self.model} is an encoder, which has no cache; nearest: phase=prefill")
        if sizes.positions and self.phase != "encode" and self.seq > sizes.positions:
            raise InputError(f"llama seq={self.seq}: {self.model} has {sizes.positions} positions")
        if sizes.patch and self.vocab and self.seq != sizes.positions:
            raise InputError(f"llama seq={self.seq}: pictures of {self.model} have seq={sizes.positions} patches")
        if sizes.latent and self.seqlens is not None:
            raise InputError(f"llama seqlens={self.seqlens}: latent attention is of equal sequences; nearest: seq")
        if self.overlap == "1" and (sizes.latent or sizes.normed != "before" or sizes.parallel):
            raise InputError(f"llama overlap=1: layers of {self.model} are not cut into halves; leave it out")

    def _check_prompts(self) -> None:
        """InputError for prompts and tokens of them that this phase has not."""
        decode = self.phase == "decode"
        if self.prompts and not (decode and self.page and self.overlap == "0"):
            rule = "a step of phase=decode with a cache in pages, and without overlap; nearest: phase=decode page=16"
            raise InputError(f"llama prompts={self.prompts}: goes with {rule}")
        if self.sample == "greedy" and (not self.vocab or self.sizes.encoder):
            raise InputError(f"llama sample={self.sample}: needs logits of a decoder; nearest: vocab=n beside it")
        if self.past and not (self.prompts if decode else self.page and self.seqlens is None):
            rule = (
                "prompts beside a decode" if decode else "a prefill of equal sequences with a cache in pages, page=16"
            )
            raise InputError(f"llama past={self.past}: goes with {rule}")

    def with_defaults(self, dtype: str) -> Self:
        """With `dtype` filled in: that of the published weights where they have 8 bits, else the machine's."""
        return super().with_defaults("fp8" if self.sizes.weights.startswith("fp8") else dtype)

    @property
    def sharers(self) -> int:
        """Devices that share attention and dense layers of the same sequences."""
        return self.tp // self.adp

    @property
    def blockwise(self) -> bool:
        """Whether products in fp8 have scales by block."""
        published = self.scale == "published" and self.sizes.weights == "fp8_block"
        return self.dtype == "fp8" and (published or self.scale == "block")

    @property
    def stored(self) -> str:
        """Format in which experts' weights are stored, `same` for that of products."""
        if self.experts_dtype != "published":
            return self.experts_dtype
        return self.sizes.weights if self.sizes.weights in packed.FORMS else "same"

    @property
    def sizes(self) -> Model:
        """Sizes of the model, with those that are given in their place."""
        given = {field: getattr(self, key) for key, field in _SIZES.items() if getattr(self, key) is not None}
        sizes = model_of(self.model)._replace(**given)
        return sizes._replace(topk=sizes.topk or 2) if sizes.experts else sizes

    def check_plain(self, machine: str) -> None:
        """InputError for what only GPUs have kernels for."""
        sizes = self.sizes
        asked = {
            "overlap": int(self.overlap),
            "page": self.page,
            "ep": self.ep - 1 and self.ep,
            "sample": self.sample.strip("0"),
            "vocab": self.vocab,
            "experts": sizes.experts,
            "head_dim": self.head_dim
            or (sizes.head_elements if sizes.head_elements * sizes.heads != sizes.hidden else 0),
        }
        for what in ("window", "qk_norm", "qkv_bias"):
            if getattr(sizes, what):
                raise InputError(f"llama model={self.model}: {what} has no form on {machine}; nearest: schedule=steps")
        for key, value in asked.items():
            if value:
                raise InputError(f"llama {key}={value}: has no form on {machine}; nearest: a model without it")
        if not sizes.plain:
            rule = f"its layers have no form on {machine}, which has those of Llama; nearest: schedule=steps"
            raise InputError(f"llama model={self.model}: {rule}")

    @property
    def flops(self) -> int:
        """Operations of all devices together."""
        return self._passes[0] * self._forward.flops

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all devices together."""
        return self._passes[0] * self._forward.macs

    @property
    def operand_bytes(self) -> int:
        """Bytes of what exists before or after the layers, on all devices together."""
        return self._passes[1] * self._forward.lasting_bytes

    @property
    def _forward(self) -> Graph:
        phase = "decode" if self.phase == "decode" else "prefill"
        return dataclasses.replace(self, phase=phase, tp=1, ep=1, adp=1, overlap="0").graph(fused=False)

    @property
    def _passes(self) -> tuple[int, int]:
        """Times the forward pass's work (each product has two in the backward pass), and its tensors (gradients)."""
        return (3, 2) if self.phase == "training" else (1, 1)

    def graph(self, fused: bool) -> Graph:
        """The operators in the order in which they are called, on one of the devices."""
        if self.phase == "training":
            raise InputError("llama phase=training: dataflow machines alone have it (sn40l); nearest: phase=prefill")
        if self.overlap == "1":
            return _overlapped(self, fused)
        own = dataclasses.replace(self, batch=-(-self.batch // self.adp), prompts=-(-self.prompts // self.adp))
        decoder = _Decoder(own, fused, GraphBuilder(str(self), self.others), {})
        return decoder.g.build(decoder.whole())


def _overlapped(op: Llama, fused: bool) -> Graph:
    """Two halves of the batch in turn; what one has to sum is summed beside the other's next kernels."""
    g, weights = GraphBuilder(str(op), op.others), dict[str, Value]()
    half = dataclasses.replace(op, batch=op.batch // 2, overlap="0")
    halves = [_Decoder(half, fused, g, weights, name) for name in ("first.", "second.")]
    xs = [decoder.first() for decoder in halves]
    sums: list[Value | None] = [None, None]
    for layer in range(op.layers):
        for part in (_Decoder.attention, _Decoder.inner):
            for i, decoder in enumerate(halves):
                xs[i] = decoder.joined(xs[i], sums[i])
                sums[i] = decoder.sum_beside(part(decoder, xs[i], f"{layer}"))
    return g.build(*(d.last(d.joined(x, found)) for d, x, found in zip(halves, xs, sums, strict=True)))


_LENGTHS = ("seq_q", "seq_k", "seqlens_q", "seqlens_k")
"""Keys of attention and of the write to its cache."""


@dataclass(frozen=True)
class _Part:
    """Sequences that one call of attention is for. name: before names of what they alone have. slots, lookup: where
    their new and their other tokens lie in a cache in pages."""

    op: Attention
    name: str
    slots: Value | None = None
    lookup: tuple[Value, ...] = ()

    @property
    def tokens(self) -> int:
        """New tokens of all of them."""
        return sum(self.op.lengths_q)


class _Decoder:
    """Writes the layers for the sequences of `op` into a graph.

    weights: those that are declared already. name: before names of what these sequences alone have.
    """

    def __init__(self, op: Llama, fused: bool, g: GraphBuilder, weights: dict[str, Value], name: str = "") -> None:
        self.op, self.fused, self.dtype = op, fused, op.between
        self.g, self.weights, self.name = g, weights, name
        self.sizes = op.sizes
        self.head_dim = self.sizes.head_elements
        self.heads, self.kv_heads = self.sizes.heads // op.sharers, max(1, self.sizes.kv_heads // op.sharers)
        self.ffn = self.sizes.ffn // op.sharers
        self.new = 1 if op.phase == "decode" else op.seq
        self.attention_op = Attention(
            batch=op.batch, heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, page=op.page,
            causal="0" if self.sizes.encoder or op.phase == "encode" else "1",
            dtype=op.product_out or self.dtype, seed=op.seed, **self._lengths(op),
        ).with_defaults(self.dtype)  # fmt: skip
        self.parts = [self._part(self.attention_op, name)]
        if op.prompts:
            prefilled = dataclasses.replace(
                self.attention_op, batch=op.prompts, seq_q=op.chunk, seq_k=op.past + op.chunk, seqlens_k=None
            )
            self.parts.append(self._part(prefilled, f"{name}prompts."))
        self.tokens = sum(part.tokens for part in self.parts)

    def _part(self, op: Attention, name: str) -> _Part:
        """Sequences that one attention is for, with what says where their keys lie."""
        if not op.page:
            return _Part(op, name)
        names = [operand for operand in op.operands if operand.name in ("page_table", "seqlens")]
        lookup = tuple(self.g.tensor(name + o.name, math.prod(o.shape), "int32") for o in names)
        return _Part(op, name, self.g.tensor(f"{name}slots", sum(op.lengths_q), "int32"), lookup)

    def _lengths(self, op: Llama) -> dict[str, Any]:
        """New tokens and keys of each sequence, as operators name them."""
        if op.seqlens is None:
            return {"seq_q": self.new, "seq_k": op.seq + (op.past if op.phase != "decode" else 0)}
        return {"seq_q": 1, "seqlens_k": op.seqlens} if op.phase == "decode" else {"seqlens_q": op.seqlens}

    def whole(self) -> Value:
        """All layers, each with weights and a cache of its own; around them what turns tokens into vectors and back."""
        dense, turn = min(self.sizes.dense, self.op.layers), len(self.sizes.windows)
        x = self.g.repeat(dense, self._layer, self.first())
        turns, left = divmod(self.op.layers - dense, turn)

        def layers(x: Value, number: int) -> Value:
            for i in range(turn):
                x = self._layer(x, dense + number * turn + i)
            return x

        x = self.g.repeat(turns, layers, x)
        for i in range(left):
            x = self._layer(x, dense + turns * turn + i)
        return self.last(x)

    def _layer(self, x: Value, number: int) -> Value:
        """Attention and inner layer, one after the other or beside each other."""
        layer, taken = f"{'encoder.' if self.op.phase == 'encode' else ''}{number}", x
        for i, part in enumerate((self.attention, self.inner)):
            own = self._shared_sum(part(taken, layer))
            if self.sizes.normed == "around":
                own = self._norm(own, f"{layer}.after{i + 1}")
            x = self.joined(x, own)
            if self.sizes.normed == "behind":
                x = self._norm(x, f"{layer}.norm{i + 1}")
            if not i and self.sizes.frames and self.op.phase != "encode":
                x = self.joined(x, self._shared_sum(self._crossed(x, layer)))
            taken = taken if self.sizes.parallel else x
        return x

    def first(self) -> Value:
        """Vectors of the tokens."""
        if self.op.phase == "encode":
            return self._sound()
        if not self.op.vocab:
            return self.g.tensor(f"{self.name}x", self.tokens * self.sizes.hidden, self.dtype)
        x = self._patches() if self.sizes.patch else self._looked_up("embedding", self._vocab)
        x = self._pointwise("scale", x) if self.sizes.scaled else x
        for name, rows in (("positions", self.sizes.positions), ("kinds", self.sizes.kinds)):
            if rows:
                x = self._pointwise("add", self._looked_up(name, rows), x)
        return self._norm(x, "norm0") if self.sizes.normed == "behind" else x

    def _patches(self) -> Value:
        """Patches of pictures, each behind a class token of its own."""
        sizes, batch = self.sizes, self.op.batch
        patches = batch * (sizes.positions - 1)
        picture = self.g.tensor("pictures", patches * sizes.patch, self.dtype)
        x = self.g.empty("patches", self.tokens * sizes.hidden, self.dtype)
        token = self._weight("class_weight", sizes.hidden)
        for i in range(batch):
            self._pointwise("copy", token, into=x.slice(i * sizes.hidden, sizes.hidden))
        # Where patches lie behind the class tokens moves no byte.
        behind = x.slice(batch * sizes.hidden, patches * sizes.hidden)
        self._linear(picture, "patch", sizes.hidden, patches, bias=True, into=behind)
        return x

    def _sound(self) -> Value:
        """Frames of sound through two convolutions over three of them, the second one of every other frame."""
        sizes, batch = self.sizes, self.op.batch
        x, hidden = self.g.tensor("sound", 2 * self.tokens * 3 * sizes.mel, self.dtype), sizes.hidden
        # A convolution is the product of each frame with its neighbours, which lie in it, or are brought together.
        x = self._pointwise(sizes.act, self._linear(x, "encoder.conv1", hidden, 2 * self.tokens, bias=True))
        near = self.g.tensor("neighbours", 3 * self.tokens * hidden, self.dtype)
        self._pointwise("copy", x, into=near.slice(0, x.size))
        x = self._pointwise(sizes.act, self._linear(near, "encoder.conv2", hidden, bias=True))
        places = self.g.tensor("encoder.positions_weight", sizes.frames * hidden, self.dtype)
        out = self.g.empty("placed", x.size, self.dtype)
        for i in range(batch):
            own = i * places.size
            self._pointwise("add", x.slice(own, places.size), places, into=out.slice(own, places.size))
        return out

    def _crossed(self, x: Value, layer: str) -> Value:
        """Attention over what the encoder gave, whose keys and values a prefill makes."""
        op, sizes, hidden = self.op, self.sizes, self.sizes.hidden
        q = self._linear(
            self._norm(x, f"{layer}.cross_norm"), f"{layer}.cross_q", self.heads * self.head_dim, bias=True
        )
        frames, width = op.batch * sizes.frames, 2 * self.heads * self.head_dim
        if op.phase == "decode":
            both = self.g.tensor(f"{self.name}{layer}.cross", frames * width, self.dtype)
        else:
            if (given := f"{self.name}encoded") not in self.weights:
                self.weights[given] = self.g.tensor(given, frames * hidden, self.dtype)
            both = self._linear(self.weights[given], f"{layer}.cross_kv", width, frames, bias=True)
        k, v = both.part(0, 2), both.part(1, 2)
        attend = dataclasses.replace(
            self.attention_op, seq_q=self.new, seq_k=sizes.frames, causal="0", page=0, batch=op.batch
        )
        found = self.g.product("aten::scaled_dot_product_attention", attend, q, k, v)
        return self._linear(found, f"{layer}.cross_out", hidden, bias=True)

    def inner(self, x: Value, layer: str) -> Value:
        """The inner layer or the experts, of this device."""
        if self.sizes.normed == "behind":
            normed = x
        else:
            normed = self.normed if self.sizes.parallel else self._norm(x, f"{layer}.norm2")
        if not self.sizes.experts:
            return self._gated(normed, layer, self.ffn)
        if int(layer.rpartition(".")[2]) < self.sizes.dense:
            return self._gated(normed, layer, self.sizes.dense_ffn // self.op.sharers)
        found = self._experts(self._gathered(normed), layer)
        if self.op.adp > 1:
            found = self.g.reduce_scatter("nccl:reduce_scatter", found, self.op.adp)
        if not self.sizes.shared:
            return found
        shared = self._gated(normed, f"{layer}.shared", self.sizes.shared // self.op.sharers)
        return self._pointwise("add", shared, found)

    def _gathered(self, x: Value) -> Value:
        """The tokens of all groups of devices."""
        return x if self.op.adp == 1 else self.g.all_gather("nccl:all_gather", x, self.op.adp)

    def joined(self, x: Value, found: Value | None) -> Value:
        """A layer's input with what it has found."""
        return x if found is None else self._pointwise("add", found, x)

    def last(self, x: Value) -> Value:
        """What comes out in the end."""
        if self.op.phase == "encode":
            return self._norm(x, "encoder.norm")
        return self._head(x) if self.op.vocab else x

    def sum_beside(self, x: Value) -> Value:
        """Partial results of all devices, summed beside what is called next."""
        return self.g.all_reduce(self._sum_label, x, self.op.tp, beside=True)

    def _weight(self, name: str, size: int, dtype: str = "") -> Value:
        """A weight, which halves of a batch share."""
        if name not in self.weights:
            self.weights[name] = self.g.tensor(name, size, dtype or self.dtype)
        return self.weights[name]

    @property
    def _vocab(self) -> int:
        """Rows of this device's part of the embedding, and of the head."""
        return -(-self.op.vocab // self.op.sharers)

    def _looked_up(self, name: str, rows: int) -> Value:
        """Rows of a table. Of the embedding each device has a part; the others' rows are zeros there."""
        table = self._weight(f"{name}_weight", rows * self.sizes.hidden)
        ids = self.g.tensor(f"{self.name}{name}_ids", self.tokens, "int32")
        op = Gather(rows=self.tokens, cols=self.sizes.hidden, of=rows, dtype=self.dtype)
        found = self.g.call("aten::embedding", op, table, ids)
        return self._shared_sum(found) if name == "embedding" else found

    def _head(self, x: Value) -> Value:
        """Logits of each sequence's last token; of an encoder what its first token gives."""
        hidden, batch, sizes = self.sizes.hidden, sum(part.op.batch for part in self.parts), self.sizes
        x = x if sizes.normed == "behind" else self._norm(x, "norm")
        if self.tokens > batch:
            last = self.g.tensor(f"{self.name}last_tokens", batch, "int32")
            op = Gather(rows=batch, cols=hidden, of=self.tokens, dtype=self.dtype)
            x = self.g.call("aten::index_select", op, x, last)
        if sizes.pooled:
            return self._pointwise("tanh", self._linear(x, "pooler", hidden, batch, bias=True))
        weight = "embedding" if sizes.tied else "head"
        logits = self._linear(x, weight, self._vocab, batch, bias=sizes.head_bias, dtype=self.dtype)
        if sizes.capped:
            logits = self._chain(("scale", "tanh", "scale"), logits)
        if self.op.sharers > 1:
            logits = self.g.all_gather("nccl:all_gather", logits, self.op.sharers)
        return self._sampled(logits, batch) if self.op.sample == "greedy" else logits

    def _sampled(self, logits: Value, batch: int) -> Value:
        """The next token of each sequence: the greatest of its logits, in fp32 as serving frameworks compare them."""
        wide = self.g.cast(logits, "fp32")
        op = Argmax(rows=batch, cols=logits.size // batch, dtype="fp32").with_defaults("fp32")
        return self.g.call("aten::argmax", op, wide)

    def attention(self, x: Value, layer: str) -> Value:
        """Attention, of this device's heads."""
        op, sizes = self.op, self.sizes
        self.normed = normed = x if sizes.normed == "behind" else self._norm(x, f"{layer}.norm1")
        if sizes.latent:
            return self._linear(self._latent(normed, sizes.latent, layer), f"{layer}.out", sizes.hidden)
        parts = self.heads + 2 * self.kv_heads
        qkv = self._linear(normed, f"{layer}.qkv", parts * self.head_dim, bias=sizes.qkv_bias)
        size = self.tokens * self.head_dim
        q = qkv.slice(0, size * self.heads)
        k, v = (qkv.slice(q.size + i * size * self.kv_heads, size * self.kv_heads) for i in range(2))
        if sizes.qk_norm:
            q, k = self._norm(q, f"{layer}.q_norm", self.head_dim), self._norm(k, f"{layer}.k_norm", self.head_dim)
        q = self._rotate(q)
        attended = self._paged(q, self._rotate(k), v, layer) if op.page else self._plain(q, k, v, layer)
        return self._linear(attended, f"{layer}.out", sizes.hidden, bias=sizes.out_bias)

    def _window(self, layer: str) -> int:
        """Keys that a query of a layer sees."""
        windows = self.sizes.windows
        return windows[(int(layer.rpartition(".")[2]) - self.sizes.dense) % len(windows)]

    def _latent(self, x: Value, latent: Latent, layer: str) -> Value:
        """Latent attention: prompts by heads of their own, which a product makes of the latent vectors; one more token
        by queries in the space of these, which all heads share."""
        heads, turned = self.heads, latent.cache + latent.rope
        per_head = latent.nope + latent.rope
        down = self._linear(x, f"{layer}.down_qkv", (latent.query or heads * per_head) + turned)
        q = down.slice(0, down.size - self.tokens * turned)
        if latent.query:
            q = self._norm(q, f"{layer}.q_norm", latent.query)
            q = self._linear(q, f"{layer}.q", heads * per_head)
        made = down.slice(down.size - self.tokens * turned, self.tokens * latent.cache)
        c = self._norm(made, f"{layer}.kv_norm", latent.cache)
        rope = self._rotate(down.slice(down.size - self.tokens * latent.rope, self.tokens * latent.rope))
        out, at = self.g.empty(f"{layer}.attended", self.tokens * heads * latent.value, self.dtype), 0
        for part in self.parts:
            own = [
                value.slice(at * value.size // self.tokens, part.tokens * value.size // self.tokens)
                for value in (q, c, rope, out)
            ]
            form = self._absorbed if part.op.queries == 1 and self.op.phase == "decode" else self._expanded
            form(part, latent, layer, *own)
            at += part.tokens
        return out

    def _latent_cache(self, part: _Part, latent: Latent, layer: str, c: Value, rope: Value) -> Value:
        """The cache of latent vectors, with the new tokens in it where it lies in pages."""
        op = part.op
        tokens = op.all_pages * op.page if op.page else sum(op.lengths_k)
        cache = self.g.tensor(f"{part.name}{layer}.latents", tokens * (latent.cache + latent.rope), self.dtype)
        if op.page:
            assert part.slots is not None
            halves = 2  # a write's vectors are no longer than a head's
            write = KvWrite(
                batch=op.batch, kv_heads=halves, head_dim=latent.cache // halves, head_dim_v=latent.rope // halves,
                page=op.page, dtype=self.dtype, seed=op.seed, seq_q=op.queries, seq_k=op.keys,
            )  # fmt: skip
            into = (cache.slice(0, tokens * latent.cache), cache.slice(tokens * latent.cache, tokens * latent.rope))
            self.g.calls("vllm:concat_and_cache_mla", write, c, rope, part.slots, *into, into=into)
        return cache

    def _absorbed(
        self, part: _Part, latent: Latent, layer: str, q: Value, c: Value, rope: Value, out: Value
    ) -> None:  # fmt: skip
        """One more token: its queries by the keys' weights, attention over latent vectors, the values' weights."""
        heads, tokens = self.heads, part.tokens
        cache = self._latent_cache(part, latent, layer, c, rope)
        queries = self.g.empty(f"{layer}.queries", tokens * heads * (latent.cache + latent.rope), self.dtype)
        plain = q.slice(0, tokens * heads * latent.nope)
        self._by_heads(plain, f"{layer}.keys", latent.cache, queries.slice(0, tokens * heads * latent.cache))
        turned = queries.slice(tokens * heads * latent.cache, tokens * heads * latent.rope)
        self._rotate(q.slice(plain.size, turned.size), into=turned)
        op = dataclasses.replace(
            part.op, kv_heads=1, head_dim=latent.cache + latent.rope, head_dim_v=latent.cache, latent="1"
        )
        label = "vllm:unified_attention" if op.page else "aten::scaled_dot_product_attention"
        found = self.g.product(label, op, queries, cache, *part.lookup)
        self._by_heads(found, f"{layer}.values", latent.value, out)

    def _by_heads(self, x: Value, name: str, outputs: int, into: Value) -> None:
        """A product of each head's vectors with weights of its own."""
        rows = into.size // (self.heads * outputs)
        inputs = x.size // (self.heads * rows)
        weight = self._weight(f"{name}_weight", self.heads * inputs * outputs)
        op = Gemm(batch=self.heads, m=rows, n=outputs, k=inputs, dtype=self.dtype).with_defaults(self.dtype)
        self.g.call("aten::bmm", op, x, weight, into=into)

    def _expanded(
        self, part: _Part, latent: Latent, layer: str, q: Value, c: Value, rope: Value, out: Value
    ) -> None:  # fmt: skip
        """Prompts: keys and values of each head from the latent vectors of all tokens so far."""
        heads, keys = self.heads, sum(part.op.lengths_k)
        cache = self._latent_cache(part, latent, layer, c, rope)
        seen = c if keys == part.tokens else cache.slice(0, keys * latent.cache)
        both = self._linear(seen, f"{layer}.keys_values", heads * (latent.nope + latent.value), keys)
        # A key's part without a position comes from the product, the other one is shared: one copy puts them together.
        made = self._pointwise("copy", both.slice(0, keys * heads * (latent.nope + latent.rope)))
        values = both.slice(keys * heads * latent.nope, keys * heads * latent.value)
        turned = q.slice(part.tokens * heads * latent.nope, part.tokens * heads * latent.rope)
        self._rotate(turned, into=turned)
        op = dataclasses.replace(part.op, kv_heads=heads, head_dim_v=latent.value, page=0)
        label = "vllm:unified_attention" if part.op.page else "aten::scaled_dot_product_attention"
        self.g.product(label, op, q, made, values, into=out)

    def _plain(self, q: Value, k: Value, v: Value, layer: str) -> Value:
        """Attention where the keys of a sequence lie together."""
        operands = (q, *self._together(k, v, layer))
        op = dataclasses.replace(self.attention_op, window=self._window(layer))
        return self.g.product("aten::scaled_dot_product_attention", op, *operands)

    def _paged(self, q: Value, k: Value, v: Value, layer: str) -> Value:
        """Attention over caches in pages: one call for the sequences that decode, one for prompts beside them."""
        label = "vllm:unified_attention"
        if len(self.parts) == 1:
            (part,) = self.parts
            op = dataclasses.replace(part.op, window=self._window(layer))
            return self.g.product(label, op, q, *self._cached(k, v, layer, part), *part.lookup)
        out, at = self.g.empty(f"{layer}.attended", q.size, q.dtype), 0
        for part in self.parts:
            own = [
                value.slice(at * value.size // self.tokens, part.tokens * value.size // self.tokens)
                for value in (q, k, v, out)
            ]
            cached = self._cached(own[1], own[2], layer, part)
            op = dataclasses.replace(part.op, window=self._window(layer))
            self.g.product(label, op, own[0], *cached, *part.lookup, into=own[3])
            at += part.tokens
        return out

    def _together(self, k: Value, v: Value, layer: str) -> tuple[Value, Value]:
        """Keys and values of all tokens, those of each sequence together."""
        op = self.op
        if op.phase != "decode":
            return self._rotate(k), self._pointwise("copy", v)
        cached = op.batch * op.seq * self.kv_heads * self.head_dim
        keys, values = (self.g.tensor(f"{self.name}{layer}.{name}", cached, self.dtype) for name in ("keys", "values"))
        # One token's keys go to the end of the cache; where they lie in it moves no byte.
        at = cached - k.size
        self._rotate(k, into=keys.slice(at, k.size))
        self._pointwise("copy", v, into=values.slice(at, v.size))
        return keys, values

    def _cached(self, k: Value, v: Value, layer: str, part: _Part) -> tuple[Value, Value]:
        """The cache in pages with the new tokens in it."""
        op = part.op
        own = {key: value for key in _LENGTHS if (value := getattr(op, key)) is not None}
        write = KvWrite(
            batch=op.batch, kv_heads=self.kv_heads, head_dim=self.head_dim, page=op.page, dtype=self.dtype,
            seed=op.seed, **own,
        )  # fmt: skip
        size = op.all_pages * op.page * self.kv_heads * self.head_dim
        keys, values = (self.g.tensor(f"{part.name}{layer}.{name}", size, self.dtype) for name in ("keys", "values"))
        into = (keys, values)
        assert part.slots is not None
        self.g.calls("vllm:reshape_and_cache_flash", write, k, v, part.slots, *into, into=into)
        return into

    def _gated(self, normed: Value, layer: str, elements: int) -> Value:
        """Two products, with a function between them that may gate."""
        sizes = self.sizes
        if sizes.gated:
            both = self._linear(normed, f"{layer}.gate_up", 2 * elements, bias=sizes.inner_bias)
            gate, up = both.part(0, 2), both.part(1, 2)
            if self.fused:
                active = self._pointwise(f"{sizes.act}+mul", gate, up)
            else:
                active = self._pointwise("mul", self._pointwise(sizes.act, gate), up)
        else:
            active = self._pointwise(sizes.act, self._linear(normed, f"{layer}.up", elements, bias=sizes.inner_bias))
        return self._linear(active, f"{layer}.down", sizes.hidden, bias=sizes.inner_bias)

    def _experts(self, normed: Value, layer: str) -> Value:
        """Experts in the place of the gated layer, each shared by the devices; all devices know the choice."""
        sizes, dtype, stored = self.sizes, self.dtype, self.op.stored
        tokens = normed.size // sizes.hidden
        logits = self._linear(normed, f"{layer}.router", sizes.experts, tokens, dtype=dtype)
        blockwise = self.op.blockwise and stored == "same"
        narrow = self.op.chosen_dtype if DTYPE_BYTES[self.op.chosen_dtype] == 1 and stored == "same" else dtype
        op = Moe(
            tokens=tokens, hidden=sizes.hidden, inter=sizes.ffn, topk=sizes.topk, experts=sizes.experts,
            tp=self.op.tp // self.op.ep, ep=self.op.ep, router="1", dtype=narrow, out=dtype,
            distribution=self.op.routing, weights=stored, scale="block" if blockwise else "none",
        )  # fmt: skip
        weights = (
            self._weight(f"{layer}.{operand.name}_weight", math.prod(operand.shape), operand.dtype)
            for operand in op.weight_operands
        )
        if blockwise:
            narrowed, scales = self._quantised(normed, sizes.hidden)
            return self.g.call("vllm:fused_moe", op, narrowed, logits, *weights, scales)
        return self.g.product("vllm:fused_moe", op, normed, logits, *weights)

    def _quantised(self, x: Value, cols: int) -> tuple[Value, ...]:
        """Rows in fp8, with a scale for each block."""
        op = Quantize(rows=x.size // cols, cols=cols, scale="group", dtype=x.dtype)
        return self.g.calls("vllm:per_token_group_quant", op.with_defaults(x.dtype), x)

    # ---- operators

    def _norm(self, x: Value, name: str, cols: int = 0) -> Value:
        """Rows of a token's vector, or of a head's, which have `cols` elements."""
        cols = cols or self.sizes.hidden
        weight = self._weight(f"{name}_weight", cols)
        rows = x.size // cols
        if self.sizes.norm == "layer":
            layer_norm = LayerNorm(rows=rows, cols=cols, dtype=self.dtype).with_defaults(self.dtype)
            return self.g.call("aten::native_layer_norm", layer_norm, x, weight, self._weight(f"{name}_bias", cols))
        op = RmsNorm(rows=rows, cols=cols, dtype=self.dtype)
        return self.g.call("aten::rms_norm", op.with_defaults(self.dtype), x, weight)

    def _shared_sum(self, x: Value) -> Value:
        """Partial results of all devices, summed."""
        return x if self.op.sharers == 1 else self.g.all_reduce(self._sum_label, x, self.op.sharers)

    @property
    def _sum_label(self) -> str:
        return "vllm:all_reduce" if self.fused else "nccl:all_reduce"

    def _linear(
        self, x: Value, name: str, outputs: int, rows: int = 0, *, bias: bool = False, dtype: str = "",
        into: Value | None = None,
    ) -> Value:  # fmt: skip
        """A product with weights of `name`. dtype: of the product, default: that of products."""
        rows, dtype = rows or self.tokens, dtype or self.op.chosen_dtype
        inputs = x.size // rows
        weight = self._weight(f"{name}_weight", inputs * outputs, dtype)
        out = self.op.product_out if dtype == self.op.chosen_dtype else None
        op = Gemm(m=rows, n=outputs, k=inputs, tb="T", dtype=dtype, out=out)
        if self.op.blockwise and dtype == "fp8" and not bias and not inputs % SCALE_BLOCK:
            op = dataclasses.replace(op, scale="block").with_defaults(dtype)
            scales = self._weight(f"{name}_scales_weight", math.prod(op.b_scales_shape), "fp32")
            narrowed, own = self._quantised(x, inputs)
            return self.g.call("vllm:w8a8_block_fp8_matmul", op, narrowed, weight, own, scales, into=into)
        if not bias:
            return self.g.product("aten::mm", op.with_defaults(dtype), x, weight, into=into)
        op = dataclasses.replace(op, epilogue="bias").with_defaults(dtype)
        added = self._weight(f"{name}_bias", outputs, op.operands[-1].dtype)
        return self.g.product("aten::addmm", op, x, weight, added, into=into)

    def _rotate(self, x: Value, into: Value | None = None) -> Value:
        """Queries or keys turned by their positions; where positions are added to tokens, themselves."""
        if not self.sizes.rotary:
            return x if into is None else self._pointwise("copy", x, into=into)
        if self.fused:
            return self._pointwise("triad", x, x, into=into)
        turned = self._pointwise("neg", x)
        return self._pointwise("add", self._pointwise("scale", x), self._pointwise("scale", turned), into=into)

    def _chain(self, names: Sequence[str], x: Value) -> Value:
        """Functions one after the other: one kernel where such are fused."""
        for name in ("+".join(names),) if self.fused else names:
            x = self._pointwise(name, x)
        return x

    def _pointwise(self, chain: str, x: Value, *others: Value, into: Value | None = None) -> Value:
        op = Pointwise(n=x.size, chain=chain, dtype=self.dtype).with_defaults(self.dtype)
        label = _LABELS.get(chain) or f"aten::{chain}"
        return self.g.call(label, op, x, *others, into=into)


_LABELS = {
    "add": "aten::add",
    "copy": "aten::copy_",
    "mul": "aten::mul",
    "neg": "aten::neg",
    "scale": "aten::mul",
    "silu": "aten::silu",
    "silu+mul": "fused_silu_mul",
    "gelu_tanh": "aten::gelu",
    "gelu_tanh+mul": "fused_gelu_mul",
    "scale+tanh+scale": "fused_tanh",
    "triad": "fused_rotary",
}
"""What a framework calls an element-by-element operator."""
