"""Which of a router's cost ends fits which model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hopgate.classifiers.checkpoint import profiles_in

CLOSEST = (
    (r"flan.*xxl|flan.*11b", "flan-t5-xxl"),
    (r"flan", "flan-t5-xl"),
    (r"\b(mini|nano|haiku|flash|lite|small|[78]b)\b", "gpt-4o-mini"),
    (r"gpt-|chatgpt|\bo[1-9]\b|claude|gemini|mistral-large|\d{2,3}b\b", "gpt-4o"),
)
"""Model names, as regular expressions, and the profile of the most similar LLM; first match."""
FALLBACK = "flan-t5-xl"
"""For models of any other name: its LLM knows least by heart, so its end retrieves most."""


def profile_for(model: str, profiles: Sequence[str]) -> str | None:
    """The profile whose LLM is most like `model`.

    Args:
        model: A model's name, with or without a provider in front, e.g. `openai:gpt-4o-mini`.
        profiles: Those that the router has.

    Returns:
        A profile of exactly that name; else the one that `CLOSEST` gives; None (the router's
        default) if the router has neither.
    """
    name = model.lower().rpartition("/")[2]
    bare = name.partition(":")[2] or name
    for exact in (name.replace(":", "-"), bare.replace(":", "-")):
        if exact in profiles:
            return exact
    found = next((to for like, to in CLOSEST if re.search(like, bare)), FALLBACK)
    return found if found in profiles else None


def chosen_profile(router: Path | str, profile: str, model: str) -> str | None:
    """The profile of a request.

    Args:
        router: Folder, or `builtin`.
        profile: The one asked for; `auto`: the one most like the model, else the router's first.
        model: The model's name.

    Returns:
        A name, not checked if it was asked for; None if the router has no cost end.
    """
    if profile != "auto":
        return profile
    profiles = profiles_in(router)
    return profile_for(model, profiles) or next(iter(profiles), None)
