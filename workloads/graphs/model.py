"""What a model is, by its sizes and by what its layers have."""

from __future__ import annotations

from typing import NamedTuple


class Latent(NamedTuple):
    """Latent attention (MLA): elements of the vectors from which queries, and keys and values, are made; of a head's
    query and key, `nope` without a position and `rope` with one; and of its value. query: 0 for queries by one product.
    """

    query: int
    cache: int
    nope: int
    rope: int
    value: int


class Model(NamedTuple):
    """Sizes of a model: elements of a token's vector, query heads, key and value heads, and of the inner layers.

    head_dim: elements of a head's vector, where it is not a head's share of `hidden`. experts, topk: inner layers
    beside each other, and how many of them a token takes; 0 where there is one. vocab: tokens that it knows. windows:
    keys that a query sees, 0 for all, of layers in turn. qk_norm: whether queries and keys are normalised head by head.
    qkv_bias, out_bias, inner_bias, head_bias: whether these products add a vector. norm: `rms` or `layer`. act: the
    function of inner layers; gated: whether it gates a second product. normed: what is normalised: what attention and
    inner layer take (`before`), also what they give (`around`), or the sum behind them (`behind`). parallel: whether
    both take the layer's input. rotary: whether queries and keys are turned by their positions; positions: of a table
    that is added to tokens, rows. kinds: rows of a table of token types. tied: whether the head is the embedding.
    capped: whether logits are. scaled: whether vectors of tokens are. dense: layers in front without experts, of
    `dense_ffn` elements. shared: elements of the expert that all tokens take. latent: of latent attention. sinks:
    whether each head has a weight for no key. encoder: whether a token sees the later ones. patch: elements of a patch
    of a picture, in the place of a vocabulary. pooled: whether the first token's vector goes through one more product.
    frames, mel, encoder_layers: of a decoder that also reads what an encoder of sound gave (`phase=encode`): frames
    that it gives, elements of a frame that it takes, its layers; 0 without one. weights: format of a published
    checkpoint, nothing where it has 16 bits; `mxfp4` is that of experts alone, `fp8_block` has scales by block.
    """

    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    layers: int
    experts: int = 0
    topk: int = 0
    head_dim: int = 0
    vocab: int = 0
    windows: tuple[int, ...] = (0,)
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    inner_bias: bool = False
    head_bias: bool = False
    norm: str = "rms"
    act: str = "silu"
    gated: bool = True
    normed: str = "before"
    parallel: bool = False
    rotary: bool = True
    positions: int = 0
    kinds: int = 0
    tied: bool = False
    capped: bool = False
    scaled: bool = False
    dense: int = 0
    dense_ffn: int = 0
    shared: int = 0
    latent: Latent | None = None
    sinks: bool = False
    encoder: bool = False
    patch: int = 0
    pooled: bool = False
    frames: int = 0
    mel: int = 0
    encoder_layers: int = 0
    weights: str = ""

    @property
    def head_elements(self) -> int:
        """Elements of a head's vector."""
        return self.head_dim or self.hidden // self.heads

    @property
    def window(self) -> int:
        """Keys that a query of the first layer sees, 0 for all."""
        return self.windows[0]

    def cached_elements(self, tp: int) -> int:
        """Elements of a token in the cache of one layer, on each of `tp` devices."""
        if self.latent:
            return self.latent.cache + self.latent.rope
        return 2 * max(1, self.kv_heads // tp) * self.head_elements

    @property
    def plain(self) -> bool:
        """Whether its layers are those of Llama, with other sizes."""
        return self[_SIZES:] == _LLAMA._replace(tied=self.tied)[_SIZES:]


_LLAMA = Model(1, 1, 1, 1, 1)
_SIZES = Model._fields.index("windows")
"""How many of the fields are sizes that every model has."""
