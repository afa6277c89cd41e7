"""Networks from files: what is read, what is refused and where, and one report of all layers."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from arch.errors import InputError
from sim import simulate
from sim.app.cli import main
from sim.app.run import compare, program_listing, request_of
from sim.app.study.case import key_of
from workloads.graphs.network_file import NetworkFile, shipped_networks
from workloads.networks.topology import ConvLayer, GemmLayer, read_topology
from workloads.ops import Conv2d, Gemm

CONV_HEADER = "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,"
CONV = f"""{CONV_HEADER}
first, 12, 9, 3, 3, 4, 8, 2,
 'again' ,\t12, 9, 3, 3, 4, 8, 2,#a comment, with a comma
pointwise, 6, 6, 1, 1, 8, 5, 1,,,,

DP_three, 8, 8, 3, 3, 4, 1, 1, 1:1,
,,,,
dense, 1, 1, 1, 1, 30, 7, 1,
uneven, 8, 8, 2, 2, 3, 3, 3, 2,
"""
GEMM = "Layer, M, N, K,\nq, 40, 24, 16,\nlast, 8, 50, 33\n"
SMALL = ("array.rows=16", "array.columns=8", "array.overlap_weights=false")


@pytest.fixture
def conv(tmp_path: Path) -> Path:
    path = tmp_path / "net.csv"
    path.write_bytes(b"\xef\xbb\xbf" + CONV.replace("\n", "\r\n").encode())
    return path


def test_layers_as_scale_sim_reads_them(conv: Path) -> None:
    layers = {layer.name: layer for layer in NetworkFile(str(conv)).layers}
    assert list(layers) == ["first", "again", "pointwise", "DP_three", "dense", "uneven"]
    # Twelve rows and a window of three at steps of two: the sixth window hangs over by one row.
    assert layers["first"].op == Conv2d(n=1, c=4, h=13, w=9, k=8, r=3, s=3, stride=2)
    assert layers["again"].op == layers["first"].op
    assert layers["pointwise"].op == Gemm(m=36, n=5, k=8, tb="T")
    assert layers["DP_three"].op == Conv2d(n=1, c=4, h=8, w=8, k=4, r=3, s=3, groups=4)
    assert layers["dense"].op == Gemm(m=1, n=7, k=30, tb="T")
    assert layers["uneven"].op == Conv2d(n=1, c=3, h=8, w=8, k=3, r=2, s=2, stride=3, stride_w=2)
    assert NetworkFile(str(conv)).hangs_over == ("first", "again")


def test_a_filter_over_whole_rows_is_a_product() -> None:
    found = NetworkFile("dlrm").layers[0].op
    assert found == Gemm(m=1024, n=4, k=16, tb="T")


def test_gemm_files_in_their_order() -> None:
    assert read_topology(GEMM, "net") == (GemmLayer("q", 40, 24, 16), GemmLayer("last", 8, 50, 33))
    assert read_topology("a,b,c,d\nq, 4, 5, 6\n", "net", "gemm") == (GemmLayer("q", 4, 5, 6),)
    assert read_topology("any text\nc, 9, 8, 3, 2, 1, 1, 1,\n", "net") == (ConvLayer("c", 9, 8, 3, 2, 1, 1, 1, 1),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        (",,\n", "is empty"),
        (CONV_HEADER, "no layer below its header"),
        (CONV_HEADER + '\x1f\n,"",\n', "no layer below its header"),
        ("c, 9, 8, 3, 2, 1, 1, 1,\n", "net line 1: is a layer, but the first line is a header"),
        (f"{CONV_HEADER}\n\nc, 9, 8, 3, 2, 1, 1,\n", "net line 3: has 7 columns, needed are 8: .*missing: stride"),
        (f"{CONV_HEADER}\nc, 9, x, 3, 2, 1, 1, 1,\n", r"net line 2 column 3 \(input width\): 'x' must be a whole"),
        (f"{CONV_HEADER}\nc, 9, 8, 3, 2, 1, 0, 1,\n", r"net line 2 column 7 \(filters\): '0' must be a whole"),
        (f"{CONV_HEADER}\nc, 9, 8, 3, 9, 1, 1, 1,\n", r"line 2 column 5 \(filter width\): 9 exceeds the input width 8"),
        (f"{CONV_HEADER}\nc, 9, 8, 3, 2, 1, 1, 1, 2:4,\n", r"net line 2 column 9 \(sparsity\): 2:4 is not modelled"),
        ("Layer, M, N, K,\nq, 1, 2, 3, 1:2,\n", r"net line 2 column 5 \(sparsity\)"),
        ("Layer, M, K, N,\nq, 1, 2, 3,\n", "net line 1: the header says M, K, N, but columns are m, n, k"),
        (f"{CONV_HEADER.replace('Num Filter', 'Channels')}\nc, 9, 8, 3, 2, 1, 1, 1,\n", "the header says IFMAP Height"),
        ("Layer, M, N, K, Batch,\nq, 1, 2, 3, 8,\n", "net line 2 column 5: 8 stands for nothing"),
        (f"{CONV_HEADER}\nc, 9, 8, 3, 2, 1, 1, 1, 1, 16,\n", "net line 2 column 10: 16 stands for nothing"),
        ("Layer, M, N, K,\nq, 1, 2,\n", "net line 2: has 3 columns, needed are 4"),
        ("Layer, M, N, K,\nq, 1, 2, 9999999999,\n", r"line 2 column 4 \(K\): '9999999999' must be .* to 2147483647"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_topology(text, "net")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="File name too long; shipped are"):
        NetworkFile(file=f"{'x' * 300}.csv")
    with pytest.raises(InputError, match=r"No such file or directory; shipped are alexnet, .*did you mean resnet50"):
        NetworkFile("resnet51")
    binary = tmp_path / "net.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="byte 0 is not UTF-8"):
        NetworkFile(str(binary))
    with pytest.raises(InputError, match="batch=2: gemm_ncf has matrix products"):
        NetworkFile("gemm_ncf", batch=2)


@pytest.mark.parametrize("name", shipped_networks())
def test_shipped_networks_are_read(name: str) -> None:
    """Layers and multiply-accumulates by the rule of the format, as its own reader counts them."""
    network = NetworkFile(name)
    rows = [line.split(",") for line in network.path.read_text(encoding="utf-8").splitlines()[1:]]
    assert [layer.name for layer in network.layers] == [row[0].strip() for row in rows]
    macs = 0
    for row in rows:
        sizes = list(map(int, row[1:-1]))
        if len(sizes) == 3:
            macs += sizes[0] * sizes[1] * sizes[2]
        else:
            h, w, r, s, c, k, stride = sizes
            macs += -(-(h - r + stride) // stride) * -(-(w - s + stride) // stride) * r * s * c * k
    assert network.macs == macs


@pytest.mark.parametrize("dataflow", ["ws", "os", "is"])
def test_cycles_of_the_array_are_scale_sims_layer_by_layer(conv: Path, dataflow: str) -> None:
    made = simulate(f"network file={conv}", "tpu-v1", scope="array", set=[*SMALL, f"array.dataflow={dataflow}"])
    report = made.to_dict()
    rows, columns = 16, 8
    expected = []
    for layer in read_topology(CONV, "net"):
        assert isinstance(layer, ConvLayer)
        parts = layer.channels if layer.depthwise else 1
        p, q = layer.output
        m, n, k = p * q, layer.filters, layer.filter_height * layer.filter_width * layer.channels // parts
        if dataflow == "os":
            folds, each = -(-m // rows) * -(-n // columns), rows + columns + k - 2
        else:
            m, n = (n, m) if dataflow == "is" else (m, n)
            folds, each = -(-k // rows) * -(-n // columns), 2 * rows + columns + m - 2
        expected.append(parts * folds * each)
    assert [layer["cycles"] for layer in report["layers"]] == expected
    assert report["cycles"] == sum(expected)
    assert report["conditions"]["scope"] == "array"


def test_one_report_of_all_layers(conv: Path) -> None:
    report = simulate(f"network file={conv}", "tpu-v1", check=True)
    document = report.to_dict()
    schema = json.loads((resources.files("sim.app.report") / "schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)
    layers = document["layers"]
    assert document["check"]["passed"]
    assert document["workload_file"]["name"] == "net.csv"
    for key in ("cycles", "macs", "time_us", "energy_j"):
        assert document[key] == pytest.approx(sum(layer[key] for layer in layers))
    # A layer alone is what its operator is.
    alone = simulate(layers[3]["workload"], "tpu-v1").to_dict()
    assert {key: layers[3][key] for key in ("cycles", "bytes", "bound")} == {
        key: alone[key] for key in ("cycles", "bytes", "bound")
    }
    assert "DP_three" in str(report)
    assert "first, again hangs over" in " ".join(str(report).split())
    assert "5 of 6 layers differ" in str(report)


def test_another_file_is_another_workload(conv: Path) -> None:
    asked = f"network file={conv}"
    before = key_of(request_of(asked, "tpu-v1"))
    assert before == key_of(request_of(asked, "tpu-v1"))
    conv.write_text(CONV.replace("30", "31"), encoding="utf-8")
    assert before != key_of(request_of(asked, "tpu-v1"))


def test_a_layer_that_cannot_run_is_named(conv: Path) -> None:
    with pytest.raises(InputError, match=r"layer first: .*fp16"):
        simulate(f"network file={conv} dtype=fp16", "tpu-v1")
    with pytest.raises(InputError, match=r"scope=array: .*leave out check"):
        simulate(f"network file={conv}", "tpu-v1", scope="array", check=True)


def test_listing_has_every_layer_once(conv: Path) -> None:
    listing = program_listing(f"network file={conv}", "tpu-v1")
    assert re.findall(r"^# layer (\w+):", listing, re.MULTILINE) == [
        "first", "pointwise", "DP_three", "dense", "uneven",
    ]  # fmt: skip


def test_the_command_line(conv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    words = ["run", "network", "--file", str(conv), "--arch", "tpu-v1"]
    assert main([*words, "--html", str(page)]) == 0
    assert "Layers" in capsys.readouterr().out
    assert "DP_three" in page.read_text(encoding="utf-8")
    assert main(["run", "gemm", "m=8", "n=8", "k=8", "--file", str(conv), "--arch", "tpu-v1"]) == 2
    assert "gemm: unknown key 'file'" in capsys.readouterr().err


def test_machines_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text(GEMM, encoding="utf-8")
    found = compare(f"network file={path}", ["tpu-v1", "tpu-v1-ext"])
    (table,) = (section for section in found.sections() if section.title == "Layers")
    assert [row[0] for row in table.rows] == ["q", "last"]
    assert table.header == ("layer", "tpu-v1 int8", "tpu-v1-ext int8")
