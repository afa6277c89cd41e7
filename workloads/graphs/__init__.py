"""Graphs of operators: layers of models, and what people put together themselves with `GraphBuilder`."""

from workloads.graphs.graph import OTHERS, Graph, GraphBuilder, GraphOperator, Repeat, Step, Unread, Value, counted
from workloads.ops.base import KINDS

__all__ = ["KINDS", "OTHERS", "Graph", "GraphBuilder", "GraphOperator", "Repeat", "Step", "Unread", "Value", "counted"]
