"""One decision or one act a file: condense, gate, route, retrieve, reason, generate.

Nodes are plain functions over plain values; `hopgate.graphs` wires them to state.
"""
