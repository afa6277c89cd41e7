"""Measurements of real machines, and the stated environment of each source. The schema is in README.md here."""

from workloads.silicon.rows import (
    HALVES,
    SILICON_CSV,
    TABLES,
    Environment,
    Row,
    environment_of,
    half,
    operator_of,
    packaged_rows,
    read_rows,
)

__all__ = [
    "HALVES",
    "SILICON_CSV",
    "TABLES",
    "Environment",
    "Row",
    "environment_of",
    "half",
    "operator_of",
    "packaged_rows",
    "read_rows",
]
