"""What cuBLAS answers when asked which kernel it takes (cublas_choices.csv)."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from scripts.lab.data import LAB
from workloads.accuracy.splits import Half, half

CHOICES_CSV = LAB / "cublas_choices.csv"


@dataclass(frozen=True)
class LibraryChoice:
    """One answer.

    sms: of the chip that was asked for. tile_n, tile_m, cluster_n, cluster_m: along n and m. first: which of n and m
    the rows of wgmma lie along. shared: whether two warpgroups share a tile. order: which way tiles go first. split:
    pieces of k.
    """

    sms: int
    dtype: str
    shape: str
    tile_n: int
    tile_m: int
    first: str
    shared: bool
    cluster_n: int
    cluster_m: int
    order: str
    split: int

    @property
    def half(self) -> Half:
        """Whether figures may be calibrated on it."""
        return half(self.shape)


COLUMNS = tuple(LibraryChoice.__dataclass_fields__)


def library_choices() -> list[LibraryChoice]:
    """All answers, in the order of the file."""
    with CHOICES_CSV.open(encoding="utf-8", newline="") as file:
        return [
            LibraryChoice(
                int(row["sms"]), row["dtype"], row["shape"], int(row["tile_n"]), int(row["tile_m"]), row["first"],
                row["shared"] == "1", int(row["cluster_n"]), int(row["cluster_m"]), row["order"], int(row["split"]),
            )
            for row in csv.DictReader(file)
        ]  # fmt: skip
