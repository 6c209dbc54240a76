"""Saved α settings, which `hopgate calibrate --save NAME` stores in a router's folder.

A setting is the α that met a goal for one LLM (the profile) with one manifest: one set of weights
and dials. It is refused for any other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopgate.classifiers.checkpoint import MANIFEST, SAVED_ALPHAS, router_folder
from hopgate.common.files import json_bytes, read_json, sha256, write_atomic

_NAME = re.compile(r"(?!(?:nan|inf|infinity)$)[a-z][a-z0-9-]*")


def check_savable(folder: Path | str, name: str) -> None:
    """Check that a setting can be saved in a router's folder.

    Raises:
        ValueError: It is not a router's folder. Or the name does not start with a letter, has
            anything but lowercase letters, digits and hyphens, or reads as a number (`nan`, `inf`).
        RuntimeError: The folder is not writable.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a setting; use lowercase letters, digits and hyphens, starting "
            "with a letter"
        )
    folder = router_folder(folder)
    sha256(folder / MANIFEST)
    if not os.access(folder, os.W_OK):
        raise RuntimeError(
            f"settings cannot be saved in {folder} (permission denied); copy the router's folder "
            "to a writable place and give that as --router"
        )


def save_alpha(folder: Path | str, name: str, setting: Mapping[str, Any]) -> None:
    """Save a setting in a router's folder.

    A setting of the same name is replaced. Settings of earlier weights or dials are dropped.

    Args:
        folder: The router's, or `builtin`.
        name: See `check_savable`.
        setting: At least `alpha` and `profile`, in plain JSON types.

    Raises:
        ValueError: See `check_savable`.
        RuntimeError: The folder is not writable.
    """
    check_savable(folder, name)
    folder = router_folder(folder)
    weights = sha256(folder / MANIFEST)
    kept = saved_for(folder) | {name: {**setting, "router_sha256": weights}}
    write_atomic(folder / SAVED_ALPHAS, json_bytes(kept))


def saved_for(folder: Path | str) -> dict[str, dict[str, Any]]:
    """Return the settings of the router that is in a folder now, by name.

    Raises:
        ValueError: It is not a router's folder, or the settings cannot be read.
    """
    folder = router_folder(folder)
    weights = sha256(folder / MANIFEST)
    return {n: each for n, each in _read(folder).items() if each["router_sha256"] == weights}


def saved_alpha(folder: Path | str, name: str, profile: str | None = None) -> float:
    """Return the α that was saved under `name` in a router's folder.

    Args:
        folder: The router's, or `builtin`.
        name: Of the setting.
        profile: The profile in use. Default: do not check it.

    Raises:
        ValueError: There is no such setting (the message lists those there are), it is for
            another profile, or the router has been trained again or got another dial since.
    """
    folder = router_folder(folder)
    weights, settings = sha256(folder / MANIFEST), _read(folder)
    if name not in settings:
        known = ", ".join(sorted(settings)) or "none yet"
        raise ValueError(
            f"--alpha {name!r} is neither a number from 0 to 1 nor a saved setting of the router "
            f"in {folder} (saved: {known}); `hopgate calibrate --save` adds one"
        )
    setting = settings[name]
    if profile is not None and (own := setting["profile"]) != profile:
        raise ValueError(
            f"--alpha {name!r} was calibrated for the profile {own}, not for {profile}; give "
            f"--profile {own}, or calibrate for {profile}"
        )
    if setting["router_sha256"] != weights:
        raise ValueError(
            f"--alpha {name!r} was calibrated before the router in {folder} was trained again or "
            "its dial changed; calibrate again"
        )
    return float(setting["alpha"])


def _read(folder: Path) -> dict[str, Any]:
    path = folder / SAVED_ALPHAS
    return read_json(path, "settings") if path.exists() else {}
