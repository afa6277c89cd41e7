"""SCALE-Sim's configuration files as overrides of a systolic array's description.

What has a counterpart is taken: size and dataflow of the array, the buffers of activations and results as unified
buffer, that of filters as weight FIFO, bandwidths by operand port. Its folds never overlap. Offsets, queues, banks and
run names say nothing about time here. What cannot be modelled (sparse weights, bank conflicts of custom layouts,
latencies from Ramulator) is refused where it is switched on.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass

from arch import reading
from arch.digits import whole_number
from arch.errors import InputError
from arch.near import hint
from arch.spec import MachineSpec
from arch.tpu import TpuSpec

_SIZES = ("ifmapsramsz", "filtersramsz", "ofmapsramsz")
_KEYS = (
    *("run_name", "arrayheight", "arraywidth", *_SIZES, *(f"{name}kb" for name in _SIZES)),
    *("ifmapoffset", "filteroffset", "ofmapoffset", "dataflow", "bandwidth", "readrequestbuffer", "writerequestbuffer"),
    *("memorybanks", "onchipmemorybanks", "onchipmemorybankports", "ifmapcustomlayout", "filtercustomlayout"),
    *(f"{operand}srambank{part}" for operand in ("ifmap", "filter") for part in ("bandwidth", "num", "port")),
    *("sparsitysupport", "sparserep", "optimizedmapping", "blocksize", "randomnumbergeneratorseed"),
    *("interfacebandwidth", "useramulatortrace", "topologycsvloc"),
)
"""Keys of all versions, small letters."""

_REFUSED = {
    "sparsitysupport": "sparse weights",
    "ifmapcustomlayout": "bank conflicts of a custom layout",
    "filtercustomlayout": "bank conflicts of a custom layout",
    "useramulatortrace": "latencies from a run of Ramulator",
}
"""Switches that must be off, and what they stand for."""

_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class ScaleSimConfig:
    """overrides: figures of the machine, `path=value`. scope: `array` where the configuration has no stalls (CALC)."""

    overrides: tuple[str, ...]
    scope: str


def read_config(path: str, machine: MachineSpec) -> ScaleSimConfig:
    """What a configuration file makes of a machine. InputError for what cannot be read and what is not modelled."""
    if not isinstance(machine, TpuSpec):
        raise InputError(f"config {path}: describes a systolic array, {machine.name} is none; tpu-v1 is one")
    keys = _keys(path)
    for key, what in _REFUSED.items():
        if keys.get(key, "false").lower() != "false":
            raise InputError(f"config {path} {key}={keys[key]}: {what} cannot be modelled; {key}=False")
    rows, columns = (_number(path, keys, key) for key in ("arrayheight", "arraywidth"))
    ifmap, weights, ofmap = (_number(path, keys, name if name in keys else f"{name}kb") for name in _SIZES)
    dataflow = keys.get("dataflow", "").lower()
    if dataflow not in ("ws", "os", "is"):
        raise InputError(f"config {path} dataflow={dataflow}: must be one of os, ws, is")
    mode = keys.get("interfacebandwidth", "CALC").upper()
    if mode not in ("CALC", "USER"):
        raise InputError(f"config {path} interfacebandwidth={mode}: must be CALC or USER")
    overrides = [
        f"array.rows={rows}",
        f"array.columns={columns}",
        f"weight_fifo.tile_rows={rows}",
        f"weight_fifo.tile_columns={columns}",
        f"array.dataflow={dataflow}",
        "array.overlap_weights=false",
        f"unified_buffer.size={ifmap + ofmap} KiB",
        f"weight_fifo.depth={max(1, weights * 1024 // (rows * columns))}",
    ]
    if mode == "USER":
        overrides += _bandwidths(path, keys, machine)
    return ScaleSimConfig(tuple(overrides), "array" if mode == "CALC" else "kernel")


def _keys(path: str) -> Mapping[str, str]:
    """All keys of a file, without their sections."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(reading.text(path, f"config {path}", _MOST_BYTES), path)
    except configparser.Error as error:
        raise InputError(f"config {' '.join(str(error).split())}") from None
    found = {}
    for section in parser.sections():
        for key, value in parser.items(section):
            if key not in _KEYS:
                raise InputError(f"config {path} [{section}]: unknown key {key}{hint(key, _KEYS)}")
            found[key] = value.strip().strip("\"'").strip()
    return found


def _number(path: str, keys: Mapping[str, str], key: str) -> int:
    if key not in keys:
        raise InputError(f"config {path}: {key} is missing")
    number = whole_number(keys[key])
    if not number:
        raise InputError(f"config {path} {key}={keys[key][:40]}: must be a whole number from 1")
    return number


def _bandwidths(path: str, keys: Mapping[str, str], machine: TpuSpec) -> list[str]:
    """Words (bytes) a cycle of each operand's port: filters come from weight memory, inputs and results take the host's
    link, whose two directions are alike."""
    given = keys.get("bandwidth", "")
    numbers = [whole_number(word.strip()) or 0 for word in given.split(",")]
    if not all(numbers) or len(numbers) not in (1, 3):
        rule = "must be words a cycle, one number for all ports or three"
        raise InputError(f"config {path} bandwidth={given[:40]}: {rule}")
    ifmap, weights, ofmap = numbers if len(numbers) == 3 else 3 * numbers
    clock = machine.clock.boost_hz
    return [
        f"dram.bandwidth={weights * clock} B/s",
        "dram.overhead=0",
        f"pcie.bandwidth={min(ifmap, ofmap) * clock} B/s",
    ]
