"""Named settings of α, kept in a router's folder and made by `hopgate calibrate --save`.

A name means the α that met a goal for one LLM (the profile) with these weights. It is refused
where either is another.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopgate.classifiers.checkpoint import MANIFEST, PRESETS, router_folder

_NAME = re.compile(r"[a-z][a-z0-9-]*")


def check_name(name: str) -> str:
    """`name`, if it can name a setting.

    Raises:
        ValueError: If it does not begin with a letter, has other than small letters, digits and
            hyphens, or reads as a number.
    """
    if not _NAME.fullmatch(name) or name in ("nan", "inf", "infinity"):
        raise ValueError(
            f"{name!r} cannot name a setting; use small letters, digits and hyphens, a letter first"
        )
    return name


def check_writable(folder: Path | str) -> None:
    """Checks that settings can be kept in a router's folder.

    Raises:
        ValueError: If it is no router's folder.
        RuntimeError: If they cannot.
    """
    _fingerprint(router_folder(folder))
    if not os.access(router_folder(folder), os.W_OK):
        raise _unwritable(router_folder(folder), "permission denied")


def save_preset(folder: Path | str, name: str, preset: Mapping[str, Any]) -> None:
    """Stores a setting in a router's folder.

    One of the same name is replaced; others stay, unless they are of weights that are gone.

    Args:
        folder: The router's, or `builtin`.
        name: As `check_name` asks.
        preset: At least `alpha` and `profile`, in plain JSON types.

    Raises:
        ValueError: If the name is none.
        RuntimeError: If the folder cannot be written to, or its settings are damaged.
    """
    folder = router_folder(folder)
    presets = _current(folder) | {
        check_name(name): {**preset, "router_sha256": _fingerprint(folder)}
    }
    text = json.dumps(presets, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        descriptor, partial = tempfile.mkstemp(dir=folder, prefix=f".{PRESETS}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(partial).chmod(0o644)
            os.replace(partial, folder / PRESETS)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
    except OSError as error:
        raise _unwritable(folder, error.strerror or str(error)) from error


def preset_alpha(folder: Path | str, name: str, profile: str | None = None) -> float:
    """The α that a router's folder keeps under `name`.

    Args:
        folder: The router's, or `builtin`.
        name: Of the setting.
        profile: The one in use. Default: not checked.

    Raises:
        ValueError: If there is no such setting (it lists those there are), it is of another
            profile, or the router was trained again since.
        RuntimeError: If the settings are damaged.
    """
    folder = router_folder(folder)
    here, presets = _fingerprint(folder), _read(folder)
    if name not in presets:
        known = ", ".join(sorted(presets)) or "none yet"
        raise ValueError(
            f"--alpha {name!r} is neither a number from 0 to 1 nor a setting of the router in "
            f"{folder}; its settings: {known}. `hopgate calibrate --save` adds one"
        )
    preset = presets[name]
    if profile is not None and preset["profile"] != profile:
        raise ValueError(
            f"--alpha {name!r} was calibrated for the profile {preset['profile']}, not for "
            f"{profile}; give --profile {preset['profile']}, or calibrate for {profile}"
        )
    if preset["router_sha256"] != here:
        raise ValueError(
            f"--alpha {name!r} was calibrated before the router in {folder} was trained again; "
            "calibrate again"
        )
    return float(preset["alpha"])


def _current(folder: Path) -> dict[str, dict[str, Any]]:
    """The settings of the weights that are there now."""
    here = _fingerprint(folder)
    return {name: each for name, each in _read(folder).items() if each["router_sha256"] == here}


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / PRESETS
    if not path.exists():
        return {}
    try:
        presets = json.loads(path.read_text(encoding="utf-8"))
        if not all(map(_is_preset, presets.values())):
            raise ValueError("a setting lacks alpha, profile or router_sha256")
    except (OSError, ValueError, AttributeError) as error:
        raise RuntimeError(f"{path} is damaged ({error}); remove it and calibrate again") from error
    return dict(presets)


def _is_preset(preset: Any) -> bool:
    return (
        isinstance(preset, dict)
        and isinstance(preset.get("alpha"), int | float)
        and math.isfinite(preset["alpha"])
        and isinstance(preset.get("profile"), str)
        and isinstance(preset.get("router_sha256"), str)
    )


def _fingerprint(folder: Path) -> str:
    """The manifest's SHA-256; the manifest has the hashes of all weights."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise ValueError(f"{folder} is not a router's folder: it has no {MANIFEST}")
    return hashlib.sha256(manifest.read_bytes()).hexdigest()


def _unwritable(folder: Path, reason: str) -> RuntimeError:
    return RuntimeError(
        f"settings cannot be kept in {folder} ({reason}); copy the router's folder to a place of "
        "your own and give that as --router"
    )
