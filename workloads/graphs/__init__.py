"""Graphs of operators: layers of models, and what people put together themselves with `GraphBuilder`."""

from workloads.graphs.graph import KINDS, Graph, GraphBuilder, GraphOperator, Step, Value

__all__ = ["KINDS", "Graph", "GraphBuilder", "GraphOperator", "Step", "Value"]
