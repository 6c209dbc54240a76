"""The graph's nodes, one function of state and runtime in each file.

Below them stand `state` (what is checkpointed), `context` (what a request can set), `events`
(what a run reports), `limits` (what the operator allows) and `runtime` (what a node works with).
"""
