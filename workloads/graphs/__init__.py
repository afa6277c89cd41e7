"""Graphs of operators: layers of models, and what people put together themselves with `GraphBuilder`."""

from workloads.graphs.graph import Graph, GraphBuilder, GraphOperator, Step, Value
from workloads.ops.base import KINDS

__all__ = ["KINDS", "Graph", "GraphBuilder", "GraphOperator", "Step", "Value"]
