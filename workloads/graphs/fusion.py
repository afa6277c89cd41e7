"""What a compiler of models makes of neighbouring operators, as PyTorch's Inductor and ONNX Runtime do.

Attention is one kernel, a norm that is written out is one, and so is a chain of element-by-element operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from workloads.graphs.meanings import Link, Model, Node, Tensor, links_of

MOST_LINKS = 16
"""Functions of a chain, at most."""


def fused(model: Model) -> Model:
    """The model with its chains of operators as one each."""
    for join in (_attention, _norms, _chains):
        model = join(model)
    while len(shorter := _chains(model).nodes) < len(model.nodes):  # of what they start with there is one reader less
        model = replace(model, nodes=shorter)
    return model


def turned(model: Model) -> Model:
    """The model with products that read an operand the other way round where nothing but a turn of its last two
    dimensions lies before it: a step of addresses, no move. Views that show all as it is are gone."""
    model = _seen_through(model)
    uses, gone, put = _Uses(model), list[Node](), dict[int, Node]()
    for node in model.nodes:
        if node.meaning != "matmul":
            continue
        found = node
        for place, key in enumerate(("ta", "tb")):
            before = uses.maker.get(node.inputs[place])
            perm = tuple(before.keys.get("perm") or ()) if before else ()
            rank = len(perm)
            if not before or rank < 2 or perm != (*range(rank - 2), rank - 1, rank - 2):
                continue
            if before.meaning == "move" and uses.only_reader(node.inputs[place]) is None:
                continue
            inputs = (*found.inputs[:place], before.inputs[0], *found.inputs[place + 1 :])
            found = replace(found, inputs=inputs, keys={**found.keys, key: not found.keys.get(key, False)})
            gone += [before] * (uses.only_reader(node.inputs[place]) is not None)
        if found is not node:
            put[id(node)] = found
    return _rewritten(model, gone, put)


def _seen_through(model: Model) -> Model:
    """The model without views of the shape and format of what they show."""
    same: dict[str, str] = {}
    nodes = []
    for node in model.nodes:
        node = replace(node, inputs=tuple(same.get(name, name) for name in node.inputs))
        if links := node.keys.get("links"):
            links = tuple(link._replace(other=same.get(link.other, link.other)) for link in links)
            node = replace(node, keys={**node.keys, "links": links})
        shown, result = (model.tensors[names[0]] if names else None for names in (node.inputs, node.outputs))
        alone = node.meaning == "view" and len(node.outputs) == 1
        if alone and shown and result and (shown.shape, shown.dtype) == (result.shape, result.dtype):
            same[result.name] = shown.name
        else:
            nodes.append(node)
    outputs = tuple(same.get(name, name) for name in model.outputs)
    return replace(model, nodes=tuple(nodes), outputs=outputs)


class _Uses:
    """Who makes and who reads each tensor of a model."""

    def __init__(self, model: Model) -> None:
        self.tensors = model.tensors
        self.maker = {name: node for node in model.nodes for name in node.outputs}
        self.readers: dict[str, list[Node]] = {}
        for node in model.nodes:
            for name in dict.fromkeys(node.inputs):
                self.readers.setdefault(name, []).append(node)
        self.kept = set(model.outputs)

    def only_reader(self, name: str) -> Node | None:
        """The one node that reads a tensor; None where there are others, or it stays."""
        found = self.readers.get(name, [])
        return found[0] if len(found) == 1 and name not in self.kept else None

    def only_maker(self, name: str, *meanings: str) -> Node | None:
        """The node that makes a tensor which nobody but one other reads, if it means one of these."""
        node = self.maker.get(name)
        return node if node and node.meaning in meanings and self.only_reader(name) else None


def _rewritten(model: Model, gone: Iterable[Node], put: Mapping[int, Node]) -> Model:
    """The model without some nodes. put: by the identity of the last node of each group, what stands in its place."""
    out = {id(node) for node in gone}
    nodes = [put.get(id(node)) or node for node in model.nodes if id(node) in put or id(node) not in out]
    return replace(model, nodes=tuple(nodes))


# ----------------------------------------------------------------------------------------------------------- attention


def _attention(model: Model) -> Model:
    """Scores, softmax and sums of values as one operator, with the moves that bring heads apart and together."""
    uses, gone, put = _Uses(model), list[Node](), dict[int, Node]()
    for node in model.nodes:
        if node.meaning == "softmax" and (found := _attended(uses, node)):
            group, whole = found
            gone += group
            put[id(group[-1])] = whole
    notes = ("A mask that is added to scores of attention leaves out no key.",) if put else ()
    return replace(_rewritten(model, gone, put), notes=(*model.notes, *notes))


def _attended(uses: _Uses, softmax: Node) -> tuple[list[Node], Node] | None:
    """The nodes around a softmax that are an attention, in their order, and what they are."""
    group = [softmax]
    scores = uses.only_maker(softmax.inputs[0], "pointwise", "matmul")
    while scores and scores.meaning == "pointwise":
        group.insert(0, scores)
        scores = uses.only_maker(scores.inputs[0], "pointwise", "matmul")
    values = uses.only_reader(softmax.outputs[0])
    while values and values.meaning == "pointwise" and len(values.inputs) == 1:
        group.append(values)
        values = uses.only_reader(values.outputs[0])
    if not (scores and values and values.meaning == "matmul" and values.inputs[0] == group[-1].outputs[0]):
        return None
    q, k, v = (uses.tensors[name].shape for name in (*scores.inputs, values.inputs[1]))
    if len(q) < 3 or len(k) != len(q) or len(v) != len(q):
        return None
    sizes = {
        "batch": _product(q[:-3]), "heads": q[-3], "kv_heads": k[-3], "seq_q": q[-2],
        "seq_k": uses.tensors[scores.outputs[0]].shape[-1], "head_dim": q[-1], "head_dim_v": v[-1],
    }  # fmt: skip
    inputs, moved = _unmoved(uses, (*scores.inputs, values.inputs[1]))
    group = [*moved, scores, *group, values]
    if (after := uses.only_reader(values.outputs[0])) and after.meaning == "move":
        group.append(after)
    return group, Node("fused_attention", "attention", inputs, group[-1].outputs, {"op": sizes})


def _unmoved(uses: _Uses, names: Iterable[str]) -> tuple[tuple[str, ...], list[Node]]:
    """Operands as they were before they were moved for this alone, or scaled, and the nodes that did it."""
    inputs, moved = [], []
    for name in names:
        while node := uses.only_maker(name, "move", "pointwise"):
            if len(node.inputs) > 1 or node.keys.get("function", "scale") not in ("cast", "copy", "mul", "scale"):
                break
            moved.append(node)
            name = node.inputs[0]
        inputs.append(name)
    return tuple(inputs), moved


def _product(shape: Iterable[int]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


# ------------------------------------------------------------------------------------------------------- norms by rows


def _norms(model: Model) -> Model:
    """Element-by-element operators around sums of rows, all of one matrix, as the one kernel that they are."""
    uses, gone, put, seen = _Uses(model), list[Node](), dict[int, Node](), set[int]()
    order = {id(node): number for number, node in enumerate(model.nodes)}
    for node in model.nodes:
        if node.meaning != "reduce" or id(node) in seen or not (cols := _columns(uses, node)):
            continue
        group, inputs = _rows_around(uses, node, cols)
        inputs[0], group = _with_casts(uses, inputs[0], group)
        results = [name for one in group for name in one.outputs if _leaves(uses, name, group)]
        if len(results) != 1 or uses.tensors[results[0]].size != uses.tensors[inputs[0]].size:
            continue
        seen |= {id(one) for one in group}
        last = max(group, key=lambda one: order[id(one)])
        functions = Counter(link.function for one in group if one.meaning == "pointwise" for link in _links(uses, one))
        if functions["exp"]:
            whole = Node("fused_softmax", "softmax", tuple(inputs[:1]), (results[0],), {"cols": cols})
        else:
            kind = "layernorm" if functions["sub"] else "rmsnorm"
            whole = Node(f"fused_{kind}", "norm", tuple(inputs), (results[0],), {"cols": cols, "kind": kind})
        gone += group
        put[id(last)] = whole
    return _rewritten(model, gone, put)


def _columns(uses: _Uses, node: Node) -> int:
    """Elements of the rows that a node sums up, 0 where these are no rows."""
    x = uses.tensors[node.inputs[0]]
    axes = [axis % len(x.shape) for axis in node.keys["axes"]]
    return x.shape[-1] if axes == [len(x.shape) - 1] and x.shape[-1] > 1 else 0


def _rows_around(uses: _Uses, first: Node, cols: int) -> tuple[list[Node], list[str]]:
    """Nodes that need nothing but one matrix, weights of its columns and each other, around a sum of its rows; then the
    matrix and those weights."""
    start = first.inputs[0]
    while (maker := uses.only_maker(start, "pointwise")) and len(set(maker.inputs)) == 1:
        start = maker.inputs[0]
    inside, weights, group = {start}, list[str](), list[Node]()
    size = uses.tensors[start].size
    waiting = list(uses.readers[start])
    while waiting:
        node = waiting.pop(0)
        if any(node is one for one in group) or node.meaning not in ("pointwise", "reduce"):
            continue
        if node.meaning == "reduce" and _columns(uses, node) != cols:
            continue
        made = uses.tensors[node.outputs[0]].size
        others = [name for name in node.inputs if name not in inside and uses.tensors[name].size > 1]
        if made not in (size, size // cols) or any(
            name in uses.maker or uses.tensors[name].size != cols for name in others
        ):
            continue
        weights += [name for name in others if name not in weights]
        group.append(node)
        inside |= set(node.outputs)
        waiting += uses.readers.get(node.outputs[0], [])
    return group, [start, *weights]


def _with_casts(uses: _Uses, start: str, group: list[Node]) -> tuple[str, list[Node]]:
    """The same with what makes the matrix of another one alone, for this group alone."""
    while (maker := uses.maker.get(start)) and maker.meaning == "pointwise" and len(set(maker.inputs)) == 1:
        if _leaves(uses, start, group):
            break
        start, group = maker.inputs[0], [maker, *group]
    return start, group


def _leaves(uses: _Uses, name: str, group: list[Node]) -> bool:
    """Whether somebody outside of a group needs what it makes."""
    return name in uses.kept or any(all(node is not one for one in group) for node in uses.readers.get(name, []))


# -------------------------------------------------------------------------------------------------------------- chains


def _chains(model: Model) -> Model:
    """Element-by-element operators that follow each other as one each, where nobody else reads what is between."""
    tensors, uses = model.tensors, _Uses(model)
    made: dict[str, Node] = {}  # by its result, a chain so far
    gone, put = list[Node](), dict[int, Node]()
    for node in model.nodes:
        if node.meaning != "pointwise" or (found := links_of(tensors, node)) is None:
            continue
        start, links = found
        for name in node.inputs:  # what runs through the chain is what the chain before has made
            before = made.get(name)
            whole = before and _joined(tensors, before, node, name, links, start)
            if before and whole and uses.only_reader(name):
                gone.append(next(one for one in model.nodes if name in one.outputs))
                put.pop(id(gone[-1]), None)
                node_now = whole
                break
        else:
            node_now = _chain(node, start, links)
        made[node.outputs[0]] = node_now
        put[id(node)] = replace(node_now, label=_title(node_now)) if len(node_now.keys["links"]) > 1 else node_now
    return _rewritten(model, gone, put)


def _joined(
    tensors: Mapping[str, Tensor], before: Node, node: Node, name: str, links: tuple[Link, ...], start: str
) -> Node | None:
    """A chain with one node more, that reads `name`, its result so far. None where they do not go together."""
    if tensors[name].size != tensors[node.outputs[0]].size or node.inputs.count(name) > 1:
        return None
    if start != name:  # the other one runs through: they change places
        links = tuple(Link(link.function, start if link.other == name else link.other) for link in links)
    chain = (*before.keys["links"], *links)
    dtype = tensors[before.inputs[0]].dtype
    others = [tensors[link.other] for link in chain if link.other and link.function != "dropout_backward"]
    spread = {other.size for other in others} - {1, tensors[name].size}
    masks = sum(link.function == "dropout_backward" and tensors[link.other].size < tensors[name].size for link in chain)
    if len(chain) > MOST_LINKS or len(spread) + masks > 1 or any(o.dtype != dtype for o in others if o.size > 1):
        return None
    return _chain(node, before.inputs[0], chain)


def _chain(node: Node, start: str, links: Iterable[Link]) -> Node:
    """A chain in the place of a node. What it starts with is in registers: nothing is read for it once more."""
    links = tuple(Link("scale") if link.other == start else link for link in links)
    inputs = (start, *(link.other for link in links if link.other))
    return Node(node.label, "pointwise", inputs, node.outputs, {"links": links})


def _links(uses: _Uses, node: Node) -> tuple[Link, ...]:
    found = links_of(uses.tensors, node)
    return found[1] if found else (Link(node.keys.get("function", "copy")),)


def _title(node: Node) -> str:
    """A chain as Inductor names its kernels."""
    names: Any = dict.fromkeys(link.function for link in node.keys["links"])
    return "fused_" + "_".join(names)
