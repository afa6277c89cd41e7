"""What an H100 and an H200 do with reads of one line by several SMs, and with clusters: facts that the model uses."""

import csv

import pytest

from scripts.lab.data import LAB

DEVICES = ("H100", "H200")


def rows(name: str, **wanted: str) -> list[dict[str, str]]:
    """Rows of a table with these words in these columns; there are some."""
    with (LAB / name).open(newline="", encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if all(row[key] == word for key, word in wanted.items())]
    assert found, (name, wanted)
    return found


def joined(row: dict[str, str]) -> float:
    """Share of the sectors that another read's answer served."""
    return int(row["joined_sectors"]) / int(row["wanted_sectors"])


def test_one_read_of_a_slice_answers_at_most_four_requests() -> None:
    long = [row for row in rows("coalescer_steps.csv") if int(row["bytes"]) >= 4096]
    most = max(1 / (1 - joined(row)) for row in long)
    assert 3.95 < most <= 4.05
    assert any(int(row["cluster"]) > 4 for row in long)
    for row in long:  # slices send what is not joined, and little else
        rest = int(row["wanted_sectors"]) - int(row["joined_sectors"])
        assert rest <= int(row["slice_sectors"]) < 1.06 * rest


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", ["16384", "65536"])
def test_reads_are_joined_while_the_first_waits_for_its_slice(size: str, device: str) -> None:
    pair = {"device": device, "bytes": size, "cluster": "2", "clusters": "1"}
    (close,) = rows("coalescer_steps.csv", **pair, delay_cycles="20")
    (late,) = rows("coalescer_steps.csv", **pair, delay_cycles="50")
    assert joined(close) == pytest.approx(0.5, abs=0.01)
    assert joined(late) < 0.01


@pytest.mark.parametrize("kind", ["bulk", "load"])
def test_reads_40_cycles_apart_are_joined_and_50_are_not(kind: str) -> None:
    """The first loads of the span are joined, too: 2048 of 4096 sectors, whatever the delay."""
    for row in rows("coalescer_steps.csv", bytes="128", cluster="2", clusters="1", kind=kind, **{"from": "L2"}):
        share = (int(row["joined_sectors"]) - 2048) / (int(row["wanted_sectors"]) - 4096)
        assert share == pytest.approx(0.5 if int(row["delay_cycles"]) <= 40 else 0, abs=0.02), row


@pytest.mark.parametrize(("device", "most"), [("H100", 560), ("H200", 660)])
def test_a_gpc_takes_in_more_of_the_same_lines_than_of_others(device: str, most: float) -> None:
    """Clusters of 16 and 8 fill the way into one GPC; SMs of one alone take in 80 to 95 B a cycle."""

    def taken(stream: str) -> float:
        gpc = rows("coalescer.csv", device=device, clusters="1", stream=stream)
        return max(int(row["cluster"]) * float(row["bytes_per_cycle_per_sm"]) for row in gpc)

    assert 0.9 * most < taken("by_cta") <= most
    assert taken("same") > 1100


def test_multicasts_stay_as_many_as_asked() -> None:
    for row in rows("library_coalescing.csv"):
        arrived, requested = int(row["arrived_sectors"]), int(row["requested_sectors"])
        multicast, sent = int(row["multicast_sectors"]), int(row["slice_sectors"])
        assert multicast <= sent, row
        assert multicast <= requested <= arrived, row
        # Other requests are joined four at a time at most.
        assert sent - multicast >= (requested - multicast) / 4.05, row


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("per_sm", range(1, 5))
def test_clusters_of_eight_take_empty_sms_first(device: str, per_sm: int) -> None:
    for row in rows("cluster_places.csv", device=device, ctas_per_sm=str(per_sm), cluster="8"):
        ctas, one = int(row["ctas"]), int(row["sms_with_1"])
        held = [int(row[f"sms_with_{n}"]) for n in range(1, 5)]
        assert sum(held) == int(row["sms"])
        assert sum(n * count for n, count in enumerate(held, start=1)) == int(row["first_wave_ctas"])
        assert not any(held[per_sm:])
        if ctas <= 120:
            assert one == ctas == int(row["sms"])
        elif ctas <= 144:
            assert int(row["sms"]) == 120
