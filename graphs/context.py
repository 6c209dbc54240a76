"""The documented import path of `Context`, which stands below the nodes that read it."""

from hopgate.nodes.run.context import Context

__all__ = ["Context"]
