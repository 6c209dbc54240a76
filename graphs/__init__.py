"""The graphs: how nodes are wired, and how to go back to a hop of a stored run.

`adaptive` is the main graph, `multihop` the loop inside it, `checkpoints` opens savers, `history`
finds and forks hops, and `events` reads the events of a run.
"""

from hopgate.nodes.run import events

__all__ = ["events"]
