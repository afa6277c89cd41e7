"""What the operators of ONNX models are: which take nothing, which are cheap, and what products the others are.

The lists say what is known. An operator that stands in none of them is refused by whoever reads a model, so that no
product can pass as free. Names are those of ONNX, of other domains `domain.Name`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from arch.errors import InputError

Shape = tuple[int, ...]

MOST_LAYERS = 100_000
"""As many as a model may have; a recurrent operator has one for each step."""

VIEWS = frozenset(
    (
        *("Constant", "Dropout", "Flatten", "Identity", "Optional", "OptionalGetElement", "OptionalHasElement"),
        *("Reshape", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"),
        *("SequenceLength", "Shape", "Size", "Squeeze", "Unsqueeze"),
    )
)
"""Operators that move nothing: their result is what they read, or is known before the model runs."""

RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
"""Operators whose results are new in each run, whatever they read."""

_MICROSOFT = "com.microsoft."

AS_FIRST = frozenset(
    _MICROSOFT + name
    for name in (
        *("BiasAdd", "BiasDropout", "BiasGelu", "BiasSoftmax", "FastGelu", "Gelu", "GroupNorm", "LayerNormalization"),
        *("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "QuickGelu", "RotaryEmbedding"),
        *("SimplifiedLayerNormalization", "SkipGroupNorm", "SkipLayerNormalization"),
        *("SkipSimplifiedLayerNormalization",),
    )
)
"""Cheap operators of ONNX Runtime whose first and fourth result have the shape of their first operand."""

_ELEMENTWISE = frozenset(_MICROSOFT + name for name in ("QLinearAdd", "QLinearMul"))
"""Cheap operators of ONNX Runtime whose first and fourth operand meet element by element."""

CHEAP = (
    frozenset(
        (
            *("Abs", "Acos", "Acosh", "Add", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh"),
            *("AveragePool", "BatchNormalization", "BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr"),
            *("BitwiseXor", "BlackmanWindow", "Cast", "CastLike", "Ceil", "Celu", "CenterCropPad", "Clip", "Col2Im"),
            *("Compress", "Concat", "ConcatFromSequence", "ConstantOfShape", "Cos", "Cosh", "CumProd", "CumSum"),
            *("DepthToSpace", "DequantizeLinear", "Div", "DynamicQuantizeLinear", "Elu", "Equal", "Erf", "Exp"),
            *("Expand", "EyeLike", "Floor", "Gather", "GatherElements", "GatherND", "Gelu", "GlobalAveragePool"),
            *("GlobalLpPool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "GridSample", "GroupNormalization"),
            *("HammingWindow", "HannWindow", "HardSigmoid", "HardSwish", "Hardmax", "InstanceNormalization", "IsInf"),
            *("IsNaN", "LRN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax"),
            *("LpNormalization", "LpPool", "Max", "MaxPool", "MaxRoiPool", "MaxUnpool", "Mean"),
            *("MeanVarianceNormalization", "Min", "Mish", "Mod", "Mul", "Neg", "NegativeLogLikelihoodLoss"),
            *("NonMaxSuppression", "NonZero", "Not", "OneHot", "Or", "PRelu", "Pad", "Pow", "QuantizeLinear"),
            *("RMSNormalization", "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
            *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Resize"),
            *("ReverseSequence", "RoiAlign", "RotaryEmbedding", "Round", "Scatter", "ScatterElements", "ScatterND"),
            *("Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Slice", "Softmax", "SoftmaxCrossEntropyLoss"),
            *("Softplus", "Softsign", "SpaceToDepth", "Split", "SplitToSequence", "Sqrt", "Sub", "Sum", "SwiGLU"),
            *("Swish", "Tan", "Tanh", "TensorScatter", "ThresholdedRelu", "Tile", "TopK", "Transpose", "Trilu"),
            *("Unique", "Upsample", "Where", "Xor"),
        )
    )
    | RANDOM
    | AS_FIRST
    | _ELEMENTWISE
)
"""Operators that do a few operations for each element that they read or write, or for each element of a pool's window:
no products of matrices."""


@dataclass(frozen=True)
class ModelConv:
    """A convolution of a model. pads: above, left, below, right."""

    name: str
    images: int
    channels: int
    size: tuple[int, int]
    filters: int
    window: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    groups: int

    @property
    def output(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        above, left, below, right = self.pads
        padded = (self.size[0] + above + below, self.size[1] + left + right)
        sides = zip(padded, self.window, self.strides, self.dilations, strict=True)
        rows, columns = ((size - (f - 1) * spread - 1) // step + 1 for size, f, step, spread in sides)
        return rows, columns


@dataclass(frozen=True)
class ModelProduct:
    """C[m, n] = A[m, k] B[k, n], `batch` times."""

    name: str
    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Products:
    """What an operator multiplies.

    results: shapes of what it writes, where this module knows them. between: elements that it reads and writes between
    its products, as of a softmax or of gates.
    """

    layers: Sequence[ModelConv | ModelProduct]
    results: Sequence[Shape | None] = ()
    between: int = 0


class UnknownShapeError(InputError):
    """The shape of an operand is not known."""


@dataclass(frozen=True)
class Call:
    """An operator of a model where it is called.

    where: for errors. given: the names of its operands, empty for what is absent. shapes: of tensors, by name.
    """

    where: str
    name: str
    attributes: Mapping[str, Any]
    given: Sequence[str]
    shapes: Mapping[str, Shape]

    def refuse(self, why: str) -> NoReturn:
        """InputError that names the operator."""
        raise InputError(f"{self.where}: {why}")

    def require(self, right: bool, why: str) -> None:
        """InputError where something does not hold."""
        if not right:
            self.refuse(why)

    def has(self, number: int) -> bool:
        """Whether there is such an operand."""
        return len(self.given) > number and bool(self.given[number])

    def shape(self, number: int, *ranks: int) -> Shape:
        """The shape of an operand. InputError where it is absent, or has a number of dimensions that cannot be;
        UnknownShapeError where it is not known."""
        self.require(self.has(number), f"operand {number} is missing")
        found = self.shapes.get(self.given[number])
        if found is None:
            raise UnknownShapeError(f"{self.where}: the shapes of its operands cannot be inferred")
        if ranks and len(found) not in ranks:
            self.refuse(f"operand {number} has {len(found)} dimensions, needed are {' or '.join(map(str, ranks))}")
        return found

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number among the attributes, from 0 on."""
        found = self.attributes.get(key, default)
        if not isinstance(found, int) or found < 0:
            self.refuse(f"{key}={found} must be a whole number from 0 on")
        return found

    def listed(self, key: str) -> tuple[Any, ...]:
        """The values of an attribute that has several; none where it is absent."""
        found = self.attributes.get(key, ())
        self.require(isinstance(found, list | tuple), f"{key}={found} must be several whole numbers")
        return tuple(found)

    def text(self, key: str, default: str = "") -> str:
        """A text among the attributes."""
        found = self.attributes.get(key, default.encode())
        self.require(isinstance(found, bytes), f"{key}={found} must be a text")
        return str(found, errors="replace")

    def numbers(self, key: str, count: int, default: int, least: int) -> tuple[int, ...]:
        """`count` whole numbers among the attributes, none smaller than `least`."""
        found = self.listed(key) or (default,) * count
        if len(found) != count or any(not isinstance(value, int) or value < least for value in found):
            self.refuse(f"{key}={list(found)} must be {count} whole numbers from {least} on")
        return found

    def product(self, m: int, n: int, k: tuple[int, int], batch: int = 1) -> ModelProduct:
        """A product; InputError where both operands' k differ."""
        self.require(min(m, n, *k, batch) > 0, f"a product of {m} x {k[0]} by {k[1]} x {n} has no elements")
        self.require(k[0] == k[1], f"columns on the left ({k[0]}) and rows on the right ({k[1]}) differ")
        return ModelProduct(self.name, batch, m, n, k[0])


def _of_window(call: Call, x: Shape, w: Shape, channels: int) -> tuple[int, Shape]:
    """Groups and sides of the window, once image and weights are known to go together. channels: of the image, in one
    group, that the weights have."""
    call.require(min(x + w, default=0) > 0, f"an image {list(x)} and weights {list(w)} have no elements")
    call.require(len(x) > 2 and len(w) == len(x), f"an image of {len(x)} and weights of {len(w)} dimensions")
    groups, window = call.number("group", 1), w[2:]
    call.require(groups > 0 and x[1] == channels * groups, f"{x[1]} channels, {groups} groups of {channels}")
    call.require(w[0] % groups == 0, f"{w[0]} filters do not fall into {groups} groups")
    given = call.listed("kernel_shape")
    call.require(given in ((), window), f"kernel_shape={list(given)}, the weights have {list(window)}")
    return groups, window


def _conv(call: Call, weights: int = 1, bias: int = 2) -> Products:
    """One or two dimensions of space; one is a single row."""
    x, w = call.shape(0), call.shape(weights)
    _bias(call, bias, w[0] if w else 0)
    groups, _ = _of_window(call, x, w, w[1] if len(w) > 1 else 0)
    space = len(x) - 2
    call.require(space in (1, 2), f"{space} dimensions of space; 1 and 2 can be read")
    strides, dilations = (call.numbers(key, space, 1, 1) for key in ("strides", "dilations"))
    before, after = _pads(call, x[2:], w[2:], strides, dilations)

    def pair(sides: Sequence[int], row: int) -> tuple[int, int]:
        return (row, sides[0]) if space == 1 else (sides[0], sides[1])

    layer = ModelConv(
        call.name, x[0], x[1], pair(x[2:], 1), w[0], pair(w[2:], 1), pair(strides, 1),
        (*pair(before, 0), *pair(after, 0)), pair(dilations, 1), groups,
    )  # fmt: skip
    call.require(min(layer.output) > 0, f"the window {list(w[2:])} does not fit into the image {list(x[2:])}")
    return Products([layer], [(x[0], w[0], *layer.output[2 - space :])])


def _pads(call: Call, size: Shape, window: Shape, strides: Shape, dilations: Shape) -> tuple[Sequence[int], ...]:
    """Zeros before and behind each side of an image."""
    auto = call.text("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        sides = zip(size, strides, window, dilations, strict=True)
        needed = [max(0, (-(-n // step) - 1) * step + (f - 1) * spread + 1 - n) for n, step, f, spread in sides]
        less, more = [n // 2 for n in needed], [n - n // 2 for n in needed]
        return (more, less) if auto == "SAME_LOWER" else (less, more)
    call.require(auto in ("NOTSET", "VALID"), f"auto_pad={auto} is not known")
    pads = call.numbers("pads", 2 * len(size), 0, 0) if auto == "NOTSET" else (0,) * (2 * len(size))
    return pads[: len(size)], pads[len(size) :]


def _bias(call: Call, number: int, size: int) -> None:
    """InputError for a bias that is no vector of a value for each filter."""
    if call.has(number):
        found = call.shape(number)
        call.require(found == (size,), f"a bias {list(found)} for {size} filters")


def _conv_transpose(call: Call) -> Products:
    """One product for each group, whose columns are then added where they overlap (im2col the other way round)."""
    x, w = call.shape(0), call.shape(1)
    call.require(len(w) > 1, f"weights of {len(w)} dimensions")
    groups, window = _of_window(call, x, w, w[0] // max(1, call.number("group", 1)))
    _bias(call, 2, w[1] * groups)
    m, n = x[0] * math.prod(x[2:]), w[1] * math.prod(window)
    return Products([call.product(m, n, (x[1] // groups, w[0] // groups), groups)], between=2 * m * n * groups)


def _deform_conv(call: Call) -> Products:
    """One product for each group, of patches that are gathered first."""
    x, w = call.shape(0, 4), call.shape(1)
    groups, window = _of_window(call, x, w, w[1] if len(w) > 1 else 0)
    offset = call.shape(2, 4)  # one for each element of the window and of the result
    m, k = x[0] * math.prod(offset[2:]), w[1] * math.prod(window)
    result = (x[0], w[0], *offset[2:])
    return Products([call.product(m, w[0] // groups, (k, k), groups)], [result], 2 * m * k * groups)


def _gemm(call: Call, left: int = 0, right: int = 1) -> Products:
    a, b = call.shape(left, 2), call.shape(right, 2)
    m, k = reversed(a) if call.number("transA", 0) else a
    rows, n = reversed(b) if call.number("transB", 0) else b
    if right == 1 and call.has(2):
        added = call.shape(2)
        call.require(_broadcast(call, (m, n), added) == (m, n), f"{list(added)} is added to {[m, n]}")
    return Products([call.product(m, n, (k, rows))], [(m, n)])


def _matmul(call: Call, left: int = 0, right: int = 1) -> Products:
    """As NumPy multiplies; where all matrices on the left meet one on the right, their rows are one matrix."""
    a, b = call.shape(left), call.shape(right)
    call.require(bool(a and b), "a number has no rows")
    vectors = len(a) == 1, len(b) == 1
    a, b = (1, *a) if vectors[0] else a, (*b, 1) if vectors[1] else b
    a = (*a[:-2], a[-1], a[-2]) if call.number("transA", 0) else a
    b = (*b[:-2], b[-1], b[-2]) if call.number("transB", 0) else b
    for key in ("transBatchA", "transBatchB"):
        call.require(not call.number(key, 0), f"{key}=1 cannot be read")
    batch = _broadcast(call, a[:-2], b[:-2])
    result = (*batch, *(() if vectors[0] else a[-2:-1]), *(() if vectors[1] else b[-1:]))
    if math.prod(b[:-2]) == 1:
        return Products([call.product(math.prod(a[:-1]), b[-1], (a[-1], b[-2]))], [result])
    return Products([call.product(a[-2], b[-1], (a[-1], b[-2]), math.prod(batch))], [result])


def _broadcast(call: Call, a: Shape, b: Shape) -> Shape:
    """The shape in which two meet, as NumPy has it."""
    depth = max(len(a), len(b))
    pairs = list(zip(*((1,) * (depth - len(side)) + side for side in (a, b)), strict=True))
    call.require(all(p == q or 1 in (p, q) for p, q in pairs), f"{list(a)} and {list(b)} do not go together")
    return tuple(q if p == 1 else p for p, q in pairs)


def _stored_weights(call: Call) -> Products:
    """MatMulNBits, MatMulBnb4: the right side is packed, its sizes are attributes."""
    a, n, k = call.shape(0), call.number("N"), call.number("K")
    call.require(bool(a), "a number has no rows")
    call.require(call.number("transB", 1) == 1, "transB=0 cannot be read")
    block, bits = call.number("block_size"), call.number("bits", 4)
    call.require(block > 0, "block_size=0 must be a whole number from 1 on")
    packed = n * -(-k // block) * (block * bits // 8)
    fits = not call.has(1) or math.prod(call.shape(1)) in (packed, -(-n * k * bits // 8))
    call.require(fits, f"{list(call.shape(1))} are no weights of N={n} K={k} in {bits} bits and blocks of {block}")
    return Products([call.product(math.prod(a[:-1]), n, (a[-1], k))], [(*a[:-1], n)])


def _dynamic(call: Call) -> Products:
    """DynamicQuantizeMatMul: the left side is quantised first."""
    return replace(_matmul(call), between=2 * math.prod(call.shape(0)))


def _einsum(call: Call) -> Products:
    """Two operands are one product; none where nothing is summed over both."""
    equation = "".join(call.text("equation").split())
    sides, arrow, result = equation.partition("->")
    terms = sides.split(",")
    call.require(len(terms) == len(call.given), f"equation={equation} has {len(terms)} operands")
    if len(terms) == 1:
        return Products([])
    call.require(len(terms) == 2, f"equation={equation}: the order of more than one product is not said")
    sizes: list[dict[str, int]] = []
    for number, term in enumerate(terms):
        shape, letters = call.shape(number), term.replace("...", "")
        rest = len(shape) - len(letters)
        fits = len(set(letters)) == len(letters) and (rest >= 0 if "..." in term else rest == 0)
        call.require(fits and (letters + "a").isalpha(), f"equation={equation}: {term} for {list(shape)}")
        begin = term.find("...") if "..." in term else 0
        names = [*letters[:begin], *(f".{rest - i}" for i in range(rest)), *letters[begin:]]
        sizes.append({name: size for name, size in zip(names, shape, strict=True) if size > 1 or name[0] != "."})
    left, right = sizes
    both = left.keys() & right.keys()
    unlike = sorted(name for name in both if left[name] != right[name])
    call.require(not unlike, f"equation={equation}: sizes of {', '.join(unlike)} differ")
    stays = set(result) if arrow else left.keys() ^ right.keys()
    if "..." in result or not arrow:
        stays |= {name for name in (*left, *right) if name[0] == "."}
    summed = math.prod(left[name] for name in both - stays)
    if not both - stays:
        return Products([])
    m, n = (math.prod(side[name] for name in side.keys() - both if name in stays) for side in sizes)
    return Products([call.product(m, n, (summed, summed), math.prod(left[name] for name in both & stays))])


def _recurrent(gates: int) -> Callable[[Call], Products]:
    """LSTM, GRU, RNN: for each direction what is read, for all steps at once, then one product a step."""

    def products(call: Call) -> Products:
        x, w, r = (call.shape(number, 3) for number in range(3))
        by_rows = bool(call.number("layout", 0))
        steps, rows = reversed(x[:2]) if by_rows else x[:2]
        hidden = r[2]
        direction = call.text("direction", "forward")
        call.require(direction in ("forward", "reverse", "bidirectional"), f"direction={direction} is not known")
        right = w[0] == r[0] == (2 if direction == "bidirectional" else 1)
        right &= w[1] == r[1] == gates * hidden == gates * call.number("hidden_size", hidden)
        call.require(right, f"weights {list(w)} and {list(r)} do not go together")
        call.require(w[0] * (steps + 1) <= MOST_LAYERS, f"{steps} steps are more than {MOST_LAYERS} layers")
        found = []
        for _ in range(w[0]):
            read = call.product(steps * rows, w[1], (x[2], w[2]))
            found += [ModelProduct(f"{call.name} input", 1, read.m, read.n, read.k)]
            found += [ModelProduct(f"{call.name} step", 1, rows, r[1], hidden)] * steps
        last = (rows, w[0], hidden) if by_rows else (w[0], rows, hidden)
        results = [(rows, steps, w[0], hidden) if by_rows else (steps, *last), last]
        return Products(found, results, w[0] * steps * rows * (gates + 1) * hidden)

    return products


def _scores_and_values(call: Call, queries: Shape, keys: Shape, value_depth: int) -> Products:
    """Attention as two products: each head of keys meets the queries of one or several query heads.

    queries, keys: batch, heads, positions (of keys past ones too), depth. The results are [batch, positions, columns],
    and keys and values with the past ones.
    """
    batch, heads, positions, depth = queries
    _, shared, length, key_depth = keys
    call.require(shared > 0 and heads % shared == 0, f"{heads} heads of queries, {shared} of keys")
    call.require(batch == keys[0] and depth == key_depth, f"queries {list(queries)} and keys {list(keys)} do not match")
    m, times = positions * (heads // shared), batch * shared
    layers = [
        ModelProduct(f"{call.name} scores", times, m, length, depth),
        ModelProduct(f"{call.name} values", times, m, value_depth, length),
    ]
    results = [(batch, positions, heads * value_depth), keys, (*keys[:3], value_depth)]
    return Products(layers, results, 2 * times * m * length)


def _heads(call: Call, number: int, key: str) -> Shape:
    """Batch, heads, positions and depth of an operand, [batch, positions, heads depth] or [batch, heads, ...]."""
    shape = call.shape(number, 3, 4)
    if len(shape) == 4:
        return shape
    heads = call.number(key)
    call.require(heads > 0 and shape[2] % heads == 0, f"{shape[2]} columns do not fall into {key}={heads}")
    return (shape[0], heads, shape[1], shape[2] // heads)


def _past(call: Call, number: int) -> int:
    """Past positions, which lie before the last dimension of an operand that may be absent."""
    return call.shape(number, 4, 5)[-2] if call.has(number) else 0


def _attention(call: Call, kv_heads: str = "kv_num_heads", q_heads: str = "q_num_heads", past: int = 4) -> Products:
    queries, keys, values = (_heads(call, i, key) for i, key in enumerate((q_heads, kv_heads, kv_heads)))
    call.require(keys[:3] == values[:3], f"keys {list(keys)} and values {list(values)} do not match")
    length = keys[2] + _past(call, past)
    found = _scores_and_values(call, queries, (keys[0], keys[1], length, keys[3]), values[3])
    first = (*queries[:3], values[3]) if len(call.shape(0)) == 4 else found.results[0]
    return replace(found, results=[first, *found.results[1:]])


def _multi_head(call: Call) -> Products:
    """com.microsoft: queries, keys and values lie side by side in one operand, or in three."""
    if call.has(1):
        call.shape(1, 3)
        return _attention(call, "num_heads", "num_heads", 6)
    batch, positions, heads, parts, depth = call.shape(0, 5)
    call.require(parts == 3 and heads == call.number("num_heads"), f"{heads} heads of {parts} parts")
    queries = (batch, heads, positions, depth)
    return _scores_and_values(call, queries, queries, depth)


def _group_query(call: Call) -> Products:
    """com.microsoft: past keys count in full length; queries, keys and values lie in one operand, or in three."""
    if call.has(1):
        return _attention(call, "kv_num_heads", "num_heads", 3)
    batch, positions, columns = call.shape(0, 3)
    heads, shared = call.number("num_heads"), call.number("kv_num_heads")
    depth, rest = divmod(columns, max(1, heads + 2 * shared))
    call.require(not rest, f"{columns} columns do not fall into {heads} and twice {shared} heads")
    length = positions + _past(call, 3)
    return _scores_and_values(call, (batch, heads, positions, depth), (batch, shared, length, depth), depth)


def _self_attention(call: Call) -> Products:
    """com.microsoft.Attention: projects its operand first."""
    x, w, heads = call.shape(0, 3), call.shape(1, 2), call.number("num_heads")
    q, k, v = _projected(call, w[1])
    call.require(heads > 0 and q == k and q % heads == v % heads == 0, f"{q} and {v} columns in {heads} heads")
    read = replace(call.product(x[0] * x[1], w[1], (x[2], w[0])), name=f"{call.name} input")
    length = x[1] + _past(call, 4)
    found = _scores_and_values(
        call, (x[0], heads, x[1], q // heads), (x[0], heads, length, k // heads), v // heads
    )  # fmt: skip
    return Products([read, *found.layers], [found.results[0], (2, x[0], heads, length, k // heads)], found.between)


def _projected(call: Call, columns: int) -> Shape:
    """Columns of queries, keys and values of com.microsoft.Attention."""
    found = call.numbers("qkv_hidden_sizes", 3, columns // 3, 1)
    call.require(sum(found) == columns, f"{columns} columns for {list(found)}")
    return found


PRODUCTS: Mapping[str, Callable[[Call], Products]] = {
    "Attention": _attention,
    "Conv": _conv,
    "ConvInteger": lambda call: _conv(call, 1, 4),
    "ConvTranspose": _conv_transpose,
    "DeformConv": _deform_conv,
    "Einsum": _einsum,
    "GRU": _recurrent(3),
    "Gemm": _gemm,
    "LSTM": _recurrent(4),
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearConv": lambda call: _conv(call, 3, 8),
    "QLinearMatMul": lambda call: _matmul(call, 0, 3),
    "RNN": _recurrent(1),
    "com.microsoft.Attention": _self_attention,
    "com.microsoft.DynamicQuantizeMatMul": _dynamic,
    "com.microsoft.FusedConv": _conv,
    "com.microsoft.FusedGemm": _gemm,
    "com.microsoft.FusedMatMul": _matmul,
    "com.microsoft.GroupQueryAttention": _group_query,
    "com.microsoft.MatMulBnb4": _stored_weights,
    "com.microsoft.MatMulIntegerToFloat": _matmul,
    "com.microsoft.MatMulNBits": _stored_weights,
    "com.microsoft.MultiHeadAttention": _multi_head,
    "com.microsoft.QGemm": lambda call: _gemm(call, 0, 3),
    "com.microsoft.TransposeMatMul": _matmul,
}
"""The products of each operator that has any."""


_ONTO_FIRST = frozenset(("LayerNormalization", "RMSNormalization")) | {
    _MICROSOFT + name
    for name in (
        *("BiasAdd", "BiasGelu", "BiasSoftmax", "LayerNormalization", "SimplifiedLayerNormalization"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    )
}
"""Cheap operators whose other operands are spread over the first, which neither onnx's inference nor anyone sees to."""

_KEEP_ELEMENTS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))


def refuse_unlike(call: Call, operator: str, results: Sequence[str]) -> None:
    """InputError where the shapes of a cheap operator do not go together, as far as onnx does not look at them.
    results: names of what it writes."""
    known = [call.shapes[name] for name in call.given if name in call.shapes]
    if operator in _ONTO_FIRST and call.given[0] in call.shapes:
        for shape in known[1:]:
            call.require(
                _broadcast(call, known[0], shape) == known[0], f"{list(shape)} is spread over {list(known[0])}"
            )
    if operator in _KEEP_ELEMENTS and call.given[0] in call.shapes and results[0] in call.shapes:
        before, after = math.prod(known[0]), math.prod(call.shapes[results[0]])
        call.require(before == after, f"of {before} elements {after}; a {operator} keeps them")


LIKE: Mapping[str, int] = {"com.microsoft.MatMulIntegerToFloat": 2, "com.microsoft.QGemm": 8}
"""The operand whose number format the results have, where that is not the first; fp32 where it is absent."""


def results_of(call: Call, operator: str) -> Sequence[Shape | None]:
    """Shapes of an operator's results, () where they are not known; UnknownShapeError where those of its operands are
    not. ONNX infers the most of its own."""
    if operator in AS_FIRST:
        return [call.shape(0), None, None, call.shape(0)]
    if operator in _ELEMENTWISE:
        return [_broadcast(call, call.shape(0), call.shape(3))]
    return PRODUCTS[operator](call).results if operator in PRODUCTS else ()
