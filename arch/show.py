"""Shows machine descriptions: rows with sources, and a JSON schema for editors."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, TypeAdapter

from arch.gpu import Instruction
from arch.leaves import Leaf, group_of, has_instructions, leaves, spec_class
from arch.spec import MachineSpec
from arch.units import word


class Row(NamedTuple):
    """One figure: the path that people type, its value in people's units, and where it comes from."""

    path: str
    value: str
    source: str


def describe(spec: MachineSpec) -> list[Row]:
    """Return every figure of a machine in the order of the description, without those that the machine lacks."""
    rows = []
    for path, leaf in leaves(type(spec)).items():
        value: Any = spec
        for attribute in leaf.attributes:
            value = getattr(value, attribute, None)
        if value is not None and value != "":
            rows.append(Row(path, _value(leaf, value), spec.sources.get(path, "")))
    for row in getattr(spec, "instructions", ()):
        path = f"instructions.{row.name}"
        rows.append(Row(path, _instruction(row), spec.sources.get(f"{path}.interval", "")))
    return rows


def documentation(family: str) -> list[tuple[str, str, str]]:
    """Figures of a family that only document: path, why nothing reads it, what to change instead."""
    model = spec_class(family)
    marks = {path: leaf.documents for path, leaf in leaves(model).items() if leaf.documents is not None}
    if has_instructions(model):
        marks |= {f"instructions, {columns}": mark for columns, mark in Instruction.documented().items()}
    return [(path, mark.reason, mark.instead) for path, mark in marks.items()]


def as_html(spec: MachineSpec) -> str:
    """Return a machine's figures as an HTML table."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("arch"), autoescape=True, trim_blocks=True)
    return environment.get_template("machine.html").render(spec=spec, rows=describe(spec))


def json_schema(family: str = "gpu") -> dict[str, Any]:
    """Return the JSON schema of a machine file of a family; editors complete and check presets with it."""
    schema = _group_schema(spec_class(family))
    schema["properties"] |= {
        "base": {"type": "string", "description": "preset or file whose figures hold where this file has none"},
        "nearest": {"type": "string", "description": "as base, of other silicon: the figures of that file are assumed"},
        "lacks": {"type": "array", "items": {"type": "string"}, "description": "paths of the base that do not hold"},
        "sources": {"type": "object", "additionalProperties": {"type": "string"}, "description": "source texts by id"},
    }
    if has_instructions(spec_class(family)):
        schema["properties"]["instructions"] = {
            "type": "object",
            "description": "rows op.dtype.shape: [pipe, interval, latency, source, remark] in cycles",
            "additionalProperties": {"anyOf": [{"type": "array", "minItems": 4, "maxItems": 5}, _row_schema()]},
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"tilewave machine ({family})",
        **schema,
    }


def _value(leaf: Leaf, value: Any) -> str:
    if leaf.unit is not None:
        return leaf.unit.format(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _instruction(row: Instruction) -> str:
    if "n*" in row.shape:
        return (
            f"{row.pipe}, interval {row.interval_cycles:g} cycles each 8 columns, at least {row.floor_cycles:g}; "
            f"tail {row.latency_cycles:g} cycles"
        )
    stall = f" and {row.stall_cycles:g} of stall" if row.stall_cycles else ""
    return f"{row.pipe}, interval {row.interval_cycles:g} cycles{stall}, latency {row.latency_cycles:g} cycles"


def _group_schema(model: type[BaseModel]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for attribute, info in model.model_fields.items():
        if attribute == "instructions":
            continue
        group = group_of(info.annotation)
        properties[word(attribute)] = _group_schema(group) if group else _figure_schema(info)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _figure_schema(info: Any) -> dict[str, Any]:
    annotation: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    value = TypeAdapter(annotation).json_schema()
    sourced = {
        "type": "array",
        "prefixItems": [value, {"type": "string"}, {"type": "string"}],
        "minItems": 2,
        "maxItems": 3,
    }
    return {"anyOf": [value, sourced]} | ({"description": info.description} if info.description else {})


def _row_schema() -> dict[str, Any]:
    names = [name for name in Instruction.model_fields if name not in ("op", "dtype", "shape")]
    columns: dict[str, Any] = {word(name): {} for name in names}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": columns | {"source": {"type": "string"}, "remark": {"type": "string"}},
        "required": ["pipe", "interval", "latency"],
    }
