"""Profiles: which of a router's weights fit which model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hopgate.classifiers.checkpoint import PROFILE, profiles_in, verify
from hopgate.classifiers.decision import DEFAULT_ALPHA

CLOSEST = (
    (r"flan.*xxl|flan.*11b", "flan-t5-xxl"),
    (r"flan", "flan-t5-xl"),
    (r"\b(mini|nano|haiku|flash|lite|small|[78]b)\b", "gpt-4o-mini"),
    (r"gpt-|chatgpt|\bo[1-9]\b|claude|gemini|mistral-large|\d{2,3}b\b", "gpt-4o"),
)
"""Regular expressions for model names, and the profile of the most similar LLM; first match."""
FALLBACK = "flan-t5-xl"
"""For all other models: the LLM that knows the least, so its weights retrieve the most."""


def profile_for(model: str, profiles: Sequence[str]) -> str | None:
    """Return the profile whose LLM is most similar to a model.

    Args:
        model: Name of the model, with or without its provider, e.g. `openai:gpt-4o-mini`.
        profiles: The router's profiles.

    Returns:
        The profile of exactly that name; else the one from `CLOSEST` or `FALLBACK`; None if the
        router has neither.
    """
    for exact in _names(model):
        if exact in profiles:
            return exact
    bare = _bare(model)
    found = next((to for like, to in CLOSEST if re.search(like, bare)), FALLBACK)
    return found if found in profiles else None


def own_profile(model: str, profiles: Sequence[str]) -> str | None:
    """Return the name for a profile of exactly this model, whether the router has one or not.

    `profile_for` prefers it. If the model's name cannot be a profile's, this returns that one.
    """
    own = next((each for each in _names(model) if each in profiles), _names(model)[1])
    return own if PROFILE.fullmatch(own) else profile_for(model, profiles)


def _names(model: str) -> tuple[str, str]:
    """Return the names that a profile of exactly this model may have."""
    full = model.lower().rpartition("/")[2]
    return full.replace(":", "-"), _bare(model).replace(":", "-")


def _bare(model: str) -> str:
    name = model.lower().rpartition("/")[2]
    return name.partition(":")[2] or name


def default_alpha(router: Path | str, profile: str, model: str) -> float:
    """Return the α of requests that give none; takes the arguments of `chosen_profile`."""
    chosen = chosen_profile(router, profile, model)
    return verify(router).alphas.get(chosen or "", DEFAULT_ALPHA)


def chosen_profile(router: Path | str, profile: str, model: str) -> str | None:
    """Return the profile to use for a request.

    Args:
        router: Folder, or `builtin`.
        profile: One of the router's profiles; or `auto`, for the one most similar to the model,
            else the router's first.
        model: Name of the model.

    Returns:
        The profile; None if the router has no cost weights.

    Raises:
        ValueError: The router has no such profile, or cannot be used.
    """
    profiles = profiles_in(router)
    if profile == "auto":
        return profile_for(model, profiles) or next(iter(profiles), None)
    return checked_profile(profile, profiles)


def checked_profile(profile: str | None, profiles: Sequence[str]) -> str:
    """Return one of a router's profiles, by default the first.

    Raises:
        ValueError: The router has no such profile.
    """
    if profile is not None and profile not in profiles:
        raise ValueError(f"profile is {profile!r}; the router has {', '.join(profiles)}")
    return profile or profiles[0]
