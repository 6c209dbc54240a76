"""The graphs: how nodes are wired, and how to go back to a hop of a stored run.

`adaptive` is the main graph, `multihop` the loop inside it, `checkpoints` opens savers, `history`
finds and forks hops, and `events` reads what a run reports while it is running.
"""

from hopgate.nodes.run import events

__all__ = ["events"]
