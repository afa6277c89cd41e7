"""Tuples of a kernel by address: a call passes a pointer where numba passes a word for each member of each array.

`packed(values)` of a NamedTuple of arrays, numbers, Nones and such tuples is read like the tuple itself. The engine's
state is thirty arrays of seven words: passing those to each function takes a seventh of the time of a compile.

There are two copies. Functions that are inlined read the near one, which never leaves the kernel that packed it, so
that the compiler turns its members into plain values. Functions that are called get the address of the far one
(`sim.engine.jit` sees to that). It never changes, which the compiler is told.
"""

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba.core import cgutils, config, types
from numba.core.imputils import lower_cast, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, models, register_model


class Far(types.Type):
    """Type of a tuple of type `values` by its address."""

    def __init__(self, values: Any) -> None:
        self.values = values
        super().__init__(name=f"{type(self).__name__}({values.name})")

    @property
    def key(self) -> Any:
        """What equal types share."""
        return self.values

    def __hash__(self) -> int:
        return hash(self.name)  # which Python keeps, where numba asks each member of each array


class Near(Far):
    """The same with a copy that only inlined functions read."""


@register_model(Far)
class _FarModel(models.PrimitiveModel):
    """A pointer to the tuple."""

    def __init__(self, manager: Any, far: Far) -> None:
        super().__init__(manager, far, manager.lookup(far.values).get_value_type().as_pointer())


@register_model(Near)
class _NearModel(models.StructModel):
    """Pointers to both copies."""

    def __init__(self, manager: Any, near: Near) -> None:
        super().__init__(manager, near, [("near", types.CPointer(near.values)), ("far", Far(near.values))])


class _Attributes(AttributeTemplate):
    def generic_resolve(self, owner: Far, name: str) -> Any:  # type: ignore[override]
        """Type of a member: as in the tuple, tuples within it by address, too."""
        if name not in owner.values.fields:
            return None
        member = owner.values[owner.values.fields.index(name)]
        return type(owner)(member) if isinstance(member, types.BaseNamedTuple) else member


@infer_getattr
class _FarAttributes(_Attributes):
    key = Far


@infer_getattr
class _NearAttributes(_Attributes):
    key = Near


@lower_getattr_generic(Far)
def _far_member(context: Any, builder: Any, far: Far, pointer: Any, name: str) -> Any:
    index = far.values.fields.index(name)
    at = cgutils.gep_inbounds(builder, pointer, 0, index)
    if isinstance(far.values[index], types.BaseNamedTuple):
        return at
    return _load(context, builder, at, far.values[index], unchanging=True)


@lower_getattr_generic(Near)
def _near_member(context: Any, builder: Any, near: Near, pointers: Any, name: str) -> Any:
    index = near.values.fields.index(name)
    member = near.values[index]
    here = cgutils.create_struct_proxy(near)(context, builder, pointers)
    at = cgutils.gep_inbounds(builder, here.near, 0, index)
    if isinstance(member, types.BaseNamedTuple):
        inside = cgutils.create_struct_proxy(Near(member))(context, builder)
        inside.near, inside.far = at, cgutils.gep_inbounds(builder, here.far, 0, index)
        return inside._getvalue()
    return _load(context, builder, at, member, unchanging=False)


@lower_cast(Near, Far)
def _far_of(context: Any, builder: Any, near: Near, far: Far, pointers: Any) -> Any:
    return cgutils.create_struct_proxy(near)(context, builder, pointers).far


def _load(context: Any, builder: Any, pointer: Any, member: Any, unchanging: bool) -> Any:
    """The member of a tuple that a pointer refers to, part by part: the compiler drops the parts that nobody reads.

    unchanging: nobody writes there, whatever addresses other functions write to.
    """
    kind = pointer.type.pointee
    value = ir.Constant(kind, ir.Undefined)
    for path in _leaves(kind):
        if isinstance(member, types.Array) and path[0] in _owners(context, member):
            value = builder.insert_value(value, ir.Constant(kind.elements[path[0]], None), path)
            continue
        load = builder.load(cgutils.gep_inbounds(builder, pointer, 0, *path) if path else pointer)
        if unchanging:
            load.set_metadata("invariant.load", builder.module.add_metadata([]))
        value = builder.insert_value(value, load, path) if path else load
    return value


def _leaves(kind: Any) -> Iterator[tuple[int, ...]]:
    """Ways to the parts of a type that have no parts."""
    if not isinstance(kind, ir.Aggregate):
        yield ()
        return
    for i in range(len(kind)):
        for path in _leaves(kind.gep(ir.IntType(32)(i))):
            yield (i, *path)


def _owners(context: Any, array: Any) -> tuple[int, ...]:
    """Places in an array of who frees it, which a kernel without reference counts never asks."""
    model = context.data_model_manager[array]
    return model.get_field_position("meminfo"), model.get_field_position("parent")


@intrinsic  # type: ignore[untyped-decorator]
def _pack(typing_context: Any, values: Any) -> Any:
    near = Near(values)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        both = cgutils.create_struct_proxy(near)(context, builder)
        both.near = cgutils.alloca_once_value(builder, arguments[0])
        far = cgutils.alloca_once_value(builder, arguments[0])
        # Through an empty piece of assembly: nothing may be read before it has been written.
        kind = ir.FunctionType(far.type, [far.type])
        both.far = builder.asm(kind, "", "=r,0,~{memory}", [far], side_effect=True)
        return both._getvalue()

    return near(values), generate


def _as_it_is(values: Any) -> Any:
    """Plain Python passes tuples by address."""
    return values


packed: Any = _as_it_is if getattr(config, "DISABLE_JIT", 0) else _pack
"""packed(values): a NamedTuple by its address, for as long as the kernel that calls this runs."""


def called_with(kind: Any) -> Any:
    """The type that a function which is not inlined gets for an argument of a type."""
    return Far(kind.values) if isinstance(kind, Near) else kind
