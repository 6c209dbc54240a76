"""`hopgate promote`: put a candidate of `hopgate improve` in use, or go back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopgate.classifiers import versions
from hopgate.classifiers.checkpoint import MANIFEST, router_folder
from hopgate.common.files import read_json, sha256

FORMAT = 1
CANDIDATE, VERDICT = "router", "verdict.json"


def promote(folder: Path, router: Path) -> versions.InUse:
    """Put a candidate in use, if its verdict allows it and nothing has changed since.

    Args:
        folder: What `hopgate improve` wrote.
        router: The router to replace; it is created if there is none.

    Raises:
        ValueError: The verdict says no or cannot be read, the candidate is already in use or has
            changed since, or the router has, or cannot be replaced.
        RuntimeError: A file of the candidate was altered, or the router cannot be replaced.
    """
    verdict = read_json(folder / VERDICT, "`hopgate improve`'s verdict")
    try:
        compared = _compared(verdict, folder, versions.replaceable(router))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / VERDICT} is damaged ({error}); run improve again") from error
    return versions.put(folder / CANDIDATE, router, compared)


def _compared(verdict: dict[str, Any], folder: Path, router: Path) -> Path:
    """Return the router that the candidate was compared with, if the verdict allows it."""
    if verdict["format"] != FORMAT:
        raise ValueError(f"{folder / VERDICT} has another format; run `hopgate improve` again")
    if not verdict["promote"]:
        raise ValueError(f"{folder} may not be promoted: {'; '.join(verdict['reasons'])}")
    in_use = router_folder(router)
    if not in_use.exists():
        in_use = router_folder(verdict["router"]["name"])
    elif sha256(in_use / MANIFEST) == verdict["candidate"]["sha256"]:
        raise ValueError(f"the candidate in {folder} is already in use as {router}")
    for path, was in ((folder / CANDIDATE, verdict["candidate"]), (in_use, verdict["router"])):
        if not (path / MANIFEST).is_file() or sha256(path / MANIFEST) != was["sha256"]:
            raise ValueError(
                f"{path} is not the router that {folder / VERDICT} compared; run `hopgate improve` "
                "again"
            )
    return in_use
