"""The graphs: their state, what a request can turn, and the wiring of nodes.

`adaptive` is the main graph, `multihop` the loop inside it.
"""
