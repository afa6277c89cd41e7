"""What NCCL runs for a collective over GPUs of one node: algorithm, protocol, channels, chunks, chosen as it does.

The choice is the library's own estimate, latency + bytes / bandwidth, with the constants of its `tuning.cc` (NCCL 2.27,
NVIDIA/nccl): a number there is what the library believes, not what this machine does. Messages between two devices, of
which an all-to-all is made, have rules of their own (`enqueue.cc`, `sendrecv.h`): each takes a share of the channels,
these carry several messages at once, each with warps of its own, and small ones go flagged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from arch.errors import InputError
from sim.link.library import Algorithm, Kind, Plan, Wire, last_of

FIGURES = (
    "collectives.copy",
    "collectives.direct",
    "collectives.flag",
    "collectives.flagged",
    "collectives.flagged_warp",
    "collectives.header",
    "collectives.line",
    "collectives.line_flag",
    "collectives.post",
    "collectives.several",
    "collectives.spread",
    "collectives.shared",
    "collectives.start",
    "collectives.warp",
    "compute_capability",
    "link.bandwidth",
    "link.peers",
    "link.switched",
    "pcie.bandwidth",
    "pcie.latency",
    "slots.bridge",
    "slots.bridge_devices",
    "slots.bridge_flow",
    "slots.peer",
    "slots.socket",
    "slots.socket_devices",
    "slots.socket_flow",
)
"""Figures of a preset that this module reads."""

_CHANNELS = 24
"""CTAs of a kernel that uses all links of a GPU behind NVSwitches."""
_LINK_BYTES_PER_S = 25_000_000_000
"""Of one NVLink: without switches the library's search finds a channel a link, and runs each twice."""
_PCIE_CHANNELS = 2
_MESSAGE_BYTES = 128
"""A store of a warp's quarter, which a link packet holds."""
CHANNEL_BUFFER_BYTES = 4 << 20
"""Into which a neighbour stores."""
_STEP_BYTES = CHANNEL_BUFFER_BYTES // 8
"""A chunk is four of them, announced in two slices."""
_LL_CHUNK_BYTES, _LL128_CHUNK_BYTES = 32 * 1024, 480 * 1024
"""Payload of a flagged channel's buffer, an eighth of it."""
MOST_DEVICES = 8
"""Of one node."""
LIBRARIES = ("nccl", "nccl-2.27")
"""The second has the rule of the versions before 2.29 for which messages between two devices go flagged."""
_PAIR_LL_BYTES = 16 * 1024
"""NCCL_P2P_LL_THRESHOLD: a message between two devices goes flagged if it has no more for each of its channels."""
_PAIR_STEP_BYTES = {"NVLink": 512 * 1024, "PCIe": 128 * 1024}
"""NCCL_P2P_NVL_CHUNKSIZE, NCCL_P2P_PCI_CHUNKSIZE: a channel carries an eighth of it at least."""
_PAIR_WARPS = 20
"""Of a channel of messages between two devices; those that it carries at once share them."""
_READING = "8.0"
"""Compute capability of GPUs that fetch messages over NVLink from the sender (`paths.cc`); others store them."""
_SWITCH_CHUNK_BYTES = 128 * 1024
"""Of one channel and device, at most."""
_THREADS = {"LL": 512, "LL128": 640, "Simple": 512}
_LEAST_BYTES_A_THREAD = {"LL": 8, "LL128": 8, "Simple": 64}
"""Below these fewer channels are used; of LL for each device."""

_BASE_US = {"tree": {"LL": 6.8, "LL128": 14.0, "Simple": 8.4}, "ring": {"LL": 6.6, "LL128": 14.0, "Simple": 8.4}}
_STEP_US = {"tree": {"LL": 0.6, "LL128": 1.25, "Simple": 4.0}, "ring": {"LL": 0.6, "LL128": 1.9, "Simple": 3.4}}
_SWITCH_US = 25.0
_TREE_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    "Simple": (
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
        0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9,
    ),
}  # fmt: skip
"""By powers of two from 64 bytes."""


class _AssumedRates(NamedTuple):
    """What the library takes a generation of GPUs for, GB/s. ll: of flagged messages; line, tree: of one channel.

    switch: share of the rings' rate that sums in the switch reach; switch_channels: CTAs of their kernel."""

    ll: float
    line: float
    tree: float
    switch: float = 0.85
    switch_channels: int = 16


_VOLTA = _AssumedRates(ll=39, line=20, tree=24)
_AMPERE = _AssumedRates(ll=87.7, line=20, tree=24)
_BELIEVED = {
    "volta": _VOLTA,
    "turing": _VOLTA,
    "ampere": _AMPERE,
    "ada": _AMPERE,
    "hopper": _AssumedRates(ll=141, line=36.7, tree=38.7),
    "blackwell": _AssumedRates(ll=282, line=40, tree=70, switch=0.74, switch_channels=24),
}
"""`llMaxBws`, `perChMaxRingLL128Bws`, `perChMaxTreeBws`, `nvlsEfficiency` and `NVLS_NCHANNELS` for one node, by compute
capability from below."""

_RING_SHARE = 0.8
"""Of the links' bandwidth, in the library's rings: 20 of 25 GB/s a link (`SM80_NVLINK_BW`)."""

_PCIE_SHARE = 12 / 15.75
"""Of PCIe's: 12 GB/s of a slot of the third generation (`PCI_BW`)."""


class Path(NamedTuple):
    """What messages between devices of one node go over. latency_ps: least time of a flag on it. rings: GB/s that the
    library takes its rings for. channels: that it finds. nvlink, switched: kind of path."""

    bandwidth_bytes_per_s: int
    latency_ps: int
    rings: float
    channels: int
    nvlink: bool
    switched: bool


def path_between(spec: Any, devices: int) -> Path:
    """The links between devices where they reach all of them, else PCIe. InputError for more than two devices over PCIe
    whose machine does not say how they hang together."""
    link = spec.link
    if link is None or devices > link.peers:
        if devices > 2 and spec.slots is None:
            raise InputError(
                f"gpus={devices}: {spec.name} does not say how {devices} devices on PCIe hang together (slots.bridge, "
                "slots.socket, ...: docs/machines.md); nearest: 2"
            )
        gbytes = spec.pcie.bandwidth_bytes_per_s / 1e9
        bandwidth, latency = spec.pcie.bandwidth_bytes_per_s, spec.pcie.latency_ps
        return Path(bandwidth, latency, _PCIE_SHARE * gbytes, _PCIE_CHANNELS, nvlink=False, switched=False)
    bandwidth = link.bandwidth_bytes_per_s
    channels = _CHANNELS if link.switched else min(_CHANNELS, max(2, 2 * (bandwidth // _LINK_BYTES_PER_S)))
    return Path(bandwidth, 0, _RING_SHARE * bandwidth / 1e9, channels, nvlink=True, switched=link.switched)


class Estimate(NamedTuple):
    """One way to run a collective, and the time that the library expects."""

    algorithm: str
    protocol: str
    time_ps: int

    def __str__(self) -> str:
        return f"nccl {self.algorithm} {self.protocol}"


def estimates(spec: Any, kind: Kind, devices: int, size_bytes: int, library: str = LIBRARIES[0]) -> list[Estimate]:
    """The ways that the library weighs, the one that it takes first; InputError for more devices than a node has.

    size_bytes: of the largest buffer of a device. library: one of `LIBRARIES`.
    """
    if devices > MOST_DEVICES:
        raise InputError(f"{kind} gpus={devices}: the model of one node takes {MOST_DEVICES}; nearest: {MOST_DEVICES}")
    if kind == "alltoall":
        path = path_between(spec, devices)
        return [Estimate("pairwise", _pair_protocol(path, devices, size_bytes // devices, library), 0)]
    believed, path = _BELIEVED[spec.architecture], path_between(spec, devices)
    found = [*_rings(believed, path, kind, devices)]
    if kind == "all_reduce":
        found += _trees(believed, path, devices, size_bytes)
    if spec.collectives.shared_bytes_per_s and path.switched and devices > 2:
        found.append(_switch(believed, path, kind, devices))
    timed = [Estimate(a, p, round(1e6 * us + 1e3 * size_bytes / rate)) for a, p, us, rate in found]
    return sorted(timed, key=lambda estimate: estimate.time_ps)


_Way = tuple[str, str, float, float]
"""Algorithm, protocol, latency in us, GB/s of the buffer."""


def _rings(b: _AssumedRates, path: Path, kind: Kind, devices: int) -> list[_Way]:
    steps = (devices - 1) * (2 if kind == "all_reduce" else 1)
    rates = {"LL": min(b.ll, path.rings / 2), "Simple": path.rings}
    if path.nvlink:
        rates["LL128"] = min(0.92 * path.rings, path.channels // 2 * b.line)
    return [
        ("ring", protocol, _BASE_US["ring"][protocol] + _STEP_US["ring"][protocol] * steps, rate * devices / steps)
        for protocol, rate in rates.items()
    ]


def _trees(b: _AssumedRates, path: Path, devices: int, size_bytes: int) -> list[_Way]:
    """Within a node trees are chains; they are weighed, and no buffer makes them the best."""
    searched = max(1, path.channels // 2)
    whole = min(0.92 * path.rings, searched * b.tree)
    rates = {"LL": min(whole / 3.8, b.ll), "Simple": whole}
    if path.nvlink:
        rates["LL128"] = min(whole * 7 / 9, searched * b.line)
    power = min(max((size_bytes // 64).bit_length() - 1, 0), 23)
    return [
        (
            "tree",
            protocol,
            _BASE_US["tree"][protocol] + 2 * _STEP_US["tree"][protocol] * (devices - 1),
            rate / 2 * _TREE_CORRECTION[protocol][power],
        )
        for protocol, rate in rates.items()
    ]


def _switch(b: _AssumedRates, path: Path, kind: Kind, devices: int) -> _Way:
    """Each device is the head of one channel, over which the links are spread."""
    share = (devices - 1) / devices
    rate = path.rings * b.switch * share * (2 if kind == "all_reduce" else share)
    steps = (devices - 1) * (2 if kind == "all_reduce" else 1)
    return "nvls", "Simple", _SWITCH_US, rate * devices / steps


def plan(spec: Any, kind: Kind, devices: int, size_bytes: int, algorithm: str, protocol: str) -> Plan:
    """The kernel for one of the ways that `estimates` gives; InputError for a tree, which no kernel here is."""
    figures = spec.collectives
    if algorithm == "tree":
        raise InputError(f"{kind}: trees are not modelled; within a node the library never takes them")
    path = path_between(spec, devices)
    port = port_bytes_per_s(spec, devices, reads=False)
    flag_ps = max(figures.flag_ps, path.latency_ps)
    slices = 1
    match protocol:
        case "LL":
            wire = Wire(protocol, flag_ps, port // 2, figures.flagged_bytes_per_s)
            chunk = _LL_CHUNK_BYTES
        case "LL128":
            wire = Wire(protocol, figures.line_flag_ps, port * 120 // 128, figures.line_bytes_per_s)
            chunk = _LL128_CHUNK_BYTES
        case _:
            slices = 2 if algorithm == "ring" else 1
            copy = figures.shared_bytes_per_s if algorithm == "nvls" else figures.copy_bytes_per_s
            asked = port_bytes_per_s(spec, devices, reads=True)
            wire = Wire(protocol, flag_ps, port, copy, slices, figures.post_ps, asked_bytes_per_s=asked)
            chunk = 4 * _STEP_BYTES
    channels = path.channels
    if algorithm == "ring":
        channels = min(channels, _busy_channels(protocol, devices, size_bytes))
    elif algorithm == "nvls":
        channels = _BELIEVED[spec.architecture].switch_channels
        chunk = _switch_chunk_bytes(channels, devices, size_bytes)
    else:
        message = size_bytes // devices
        parts = _parts(path, devices, message, protocol)
        # Shares of neighbouring rounds begin in the same channels (their numbers' bits are reversed).
        channels = min(_pair_channels(path), max(devices, parts))
        chunk, at_once = -(-message // parts), -(-devices * parts // channels)
        each = figures.flagged_warp_bytes_per_s
        if protocol == "Simple":
            chunk, each = min(chunk, _pair_step_bytes(path)), figures.warp_bytes_per_s
            reads = path.nvlink and spec.compute_capability == _READING
            port = port_bytes_per_s(spec, devices, reads=reads, all_to_all=True)
            wire = wire._replace(port_bytes_per_s=port)
        wire = wire._replace(channel_bytes_per_s=_sending_warps(at_once) * each)
    sending = channels
    if algorithm == "pairwise":
        sending = min(channels, (devices - 1) * parts)
    start_ps = figures.start_ps + (figures.several_ps if sending > 1 else 0)
    start_ps += round(last_of(devices, figures.spread_ps))
    if algorithm == "ring" and protocol == "Simple" and kind != "reduce_scatter":
        start_ps += figures.direct_ps
    of: Algorithm = algorithm  # type: ignore[assignment]
    return Plan(kind, of, devices, size_bytes, wire, channels, chunk, start_ps)


def copying(algorithm: str, protocol: str) -> str:
    """The figure that says how fast the channels of a ring or of `nvls` copy."""
    if algorithm == "nvls":
        return "collectives.shared"
    return {"LL": "collectives.flagged", "LL128": "collectives.line"}.get(protocol, "collectives.copy")


def _pair_protocol(path: Path, devices: int, message_bytes: int, library: str) -> str:
    """Channels count as in the other protocol; before 2.29 all those between two devices, also idle ones."""
    channels = _parts(path, devices, message_bytes, "Simple") if library == LIBRARIES[0] else _pair_channels(path)
    return "LL" if message_bytes <= channels * _PAIR_LL_BYTES else "Simple"


def _pair_channels(path: Path) -> int:
    """Channels between two devices, a power of two."""
    return 1 << (path.channels - 1).bit_length()


def _parts(path: Path, devices: int, message_bytes: int, protocol: str) -> int:
    """Channels that carry a message: a share of all for each device, as many as have enough to do."""
    share = max(1, _pair_channels(path) >> (devices - 1).bit_length())
    step = 2 * _LL_CHUNK_BYTES if protocol == "LL" else _pair_step_bytes(path)
    return max(1, min(share, -(-message_bytes // (step // 8))))


def _pair_step_bytes(path: Path) -> int:
    """Of a message that a channel announces at once."""
    return _PAIR_STEP_BYTES["NVLink" if path.nvlink else "PCIe"]


def _sending_warps(messages: int) -> int:
    """Of each of the messages that a channel carries at once; the others receive, one of an even number is idle."""
    return (_PAIR_WARPS // messages + 1) // 2


def port_bytes_per_s(spec: Any, devices: int, *, reads: bool, all_to_all: bool = False) -> int:
    """Payload that goes through a device's path to the others in one direction; reads have headers in both.

    all_to_all: each device sends to each other one, not to its neighbour alone."""
    if not path_between(spec, devices).nvlink and spec.slots is not None:
        return _slots_bytes_per_s(spec.slots, devices, all_to_all)
    packet = _MESSAGE_BYTES + (2 if reads else 1) * spec.collectives.header_bytes
    return int(path_between(spec, devices).bandwidth_bytes_per_s * _MESSAGE_BYTES // packet)


def _slots_bytes_per_s(slots: Any, devices: int, all_to_all: bool) -> int:
    """What a device of a node without links sends, by the level of the node that holds all of them up.

    In a ring one flow leaves each bridge and each socket. Where all send to all, a group of g of n devices has
    g (n - g) flows, and its own devices n - 1 each.
    """
    found = int(slots.peer_bytes_per_s)
    for group, flow, whole in (
        (slots.bridge_devices, slots.bridge_flow_bytes_per_s, slots.bridge_bytes_per_s),
        (slots.socket_devices, slots.socket_flow_bytes_per_s, slots.socket_bytes_per_s),
    ):
        if devices > group:
            flows = group * (devices - group)
            out = min(flows * flow, whole) * (devices - 1) // flows if all_to_all else min(flow, whole)
            found = min(found, int(out))
    return found


def _busy_channels(protocol: str, devices: int, size_bytes: int) -> int:
    """As many as have enough to do."""
    least = _THREADS[protocol] * _LEAST_BYTES_A_THREAD[protocol] * (devices if protocol == "LL" else 1)
    return max(1, size_bytes // least)


def _switch_chunk_bytes(channels: int, devices: int, size_bytes: int) -> int:
    """What all channels of a device handle at once: less of small buffers, so that its groups of warps overlap."""
    at_once = channels * devices
    chunk = _SWITCH_CHUNK_BYTES
    for most, smaller in ((64, 65536), (8, 32768), (2, 16384)):
        if size_bytes < most * at_once * chunk:
            chunk = smaller
    return at_once * chunk
