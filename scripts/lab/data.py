"""Where the laboratory keeps what its probes measured: tables that no run of the simulator reads."""

from pathlib import Path

LAB = Path(__file__).resolve().parents[2] / "workloads" / "silicon" / "lab"
