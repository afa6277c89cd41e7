"""Measurements of real machines, and the stated environment of each source. The schema is in README.md here."""

from workloads.silicon.rows import (
    SILICON_CSV,
    TABLES,
    Environment,
    Row,
    environment_of,
    operator_of,
    packaged_rows,
    read_rows,
)

__all__ = [
    "SILICON_CSV",
    "TABLES",
    "Environment",
    "Row",
    "environment_of",
    "operator_of",
    "packaged_rows",
    "read_rows",
]
