"""Placeholder until the real one is merged."""

from typing import Any

from hopgate.retrievers.hybrid import DEFAULT_MODE, Mode


def default_mode(*_: Any) -> tuple[Mode, str]:
    """Return hybrid."""
    return DEFAULT_MODE, ""
