"""Writing a router's folder: all of it, or nothing."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from hopgate.classifiers.checkpoint import (
    BASE,
    CARD,
    CURRENT,
    FORMAT,
    GRAPH,
    HEAD,
    MANIFEST,
    MAX_TOKENS,
    SAVED_ALPHAS,
    TOKENIZER,
    Checkpoint,
    Weights,
    is_router,
    router_folder,
    versions_of,
)
from hopgate.common.files import json_bytes, sha256

Parts = dict[str, dict[str, NDArray[np.float32]]]
"""Parameters by part and name."""
_OWN_FILE = re.compile(
    rf"{MANIFEST}|{TOKENIZER}|{GRAPH}|{CARD}|\.?{SAVED_ALPHAS}.*|(shared|base|(cost|reliability)(-.*)?)\.safetensors"
)


def split(weights: Mapping[str, Weights], base: Weights) -> Parts:
    """Separate the weights that several sets share, to store them once.

    Args:
        weights: All parameters of each set of weights, by part.
        base: All parameters before fine-tuning.

    Returns:
        `shared`: the weights that all have in common (all of the base if there are none); by part,
        the rest; `base`: where the base differs from `shared`.
    """
    first, *others = weights.values() or [base]
    same = {n for n, t in first.items() if all(np.array_equal(t, other[n]) for other in others)}
    shared = {name: first[name] for name in sorted(same)}
    parts = {p: {n: t for n, t in state.items() if n not in same} for p, state in weights.items()}
    own = {n: t for n, t in base.items() if n not in same or not np.array_equal(t, shared[n])}
    return {"shared": shared, BASE: own, **parts}


def write(checkpoint: Checkpoint, out: Path, card: str, *, int8: bool, overwrite: bool) -> None:
    """Write a router's folder, completely or not at all.

    Args:
        checkpoint: The content.
        out: The folder; it must not exist unless `overwrite`.
        card: The model card, for README.md.
        int8: Store matrices as int8 with a scale a row instead of in half precision.
        overwrite: Replace an existing folder.

    Raises:
        ValueError: The folder exists and `overwrite` is false.
    """
    check_free(out, overwrite)
    with _replacing(out) as folder:
        checkpoint.tokenizer.save(str(folder / TOKENIZER))
        files = {part: f"{part}.safetensors" for part in checkpoint.parts}
        for part, name in files.items():
            _write_weights(checkpoint.parts[part], folder / name, int8)
        hashed = [TOKENIZER, *files.values()]
        if checkpoint.graph:
            (folder / GRAPH).write_bytes(checkpoint.graph)
            hashed.append(GRAPH)
        manifest = {
            "format": FORMAT,
            "architecture": checkpoint.architecture,
            "config": checkpoint.config,
            "tokenizer": TOKENIZER,
            "max_tokens": MAX_TOKENS,
            "tensors": files,
            "graph": GRAPH if checkpoint.graph else None,
            "sha256": {name: sha256(folder / name) for name in hashed},
            "dials": {name: dial.weights.tolist() for name, dial in checkpoint.dials.items()},
            "alphas": checkpoint.alphas,
            "known": {name: asdict(each) for name, each in checkpoint.known.items()},
            "training": checkpoint.training,
        }
        (folder / MANIFEST).write_bytes(json_bytes(manifest))
        (folder / CARD).write_text(card, encoding="utf-8")


def model_card(template: str, values: Mapping[str, Any], notes: str, before: str = "") -> str:
    """Return a model card: the card before, a filled template of this folder, and notes."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    options: Any = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    page = Environment(loader=loader, **options).get_template(template).render(values)
    return "\n\n".join(filter(None, (before.rstrip(), page.strip(), notes.strip()))) + "\n"


def check_free(out: Path, overwrite: bool) -> None:
    """Check that a router's folder can be written to `out`.

    Only an empty folder, or one that holds a router and nothing else, is ever replaced.

    Raises:
        ValueError: `out` cannot be created, or exists and must not be replaced.
    """
    in_use = router_folder(out)
    if not in_use.exists():
        there = next(path for path in out.absolute().parents if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ValueError(f"{out} cannot be created in {there}; choose another folder")
        return
    if not overwrite:
        raise ValueError(f"{out} exists; choose another folder, or give --overwrite")
    names = {path.name for path in in_use.iterdir()} if in_use.is_dir() else {out.name}
    if names and not is_router(in_use):
        raise ValueError(
            f"{out} is not a router's folder, so it is not overwritten; choose another"
        )
    if others := sorted(name for name in names if not _OWN_FILE.fullmatch(name)):
        raise ValueError(
            f"{out} contains {others[0]!r} besides the router, so it is not overwritten; move that "
            "file or choose another folder"
        )


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `out` if the block succeeds."""
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        new, old = Path(temporary, "new"), Path(temporary, "old")
        new.mkdir()
        yield new
        if out.exists():
            os.replace(out, old)
        os.replace(new, out)
        (versions_of(out) / CURRENT).unlink(missing_ok=True)  # the new router is in use now


def _write_weights(weights: Weights, path: Path, int8: bool) -> None:
    stored: dict[str, NDArray[Any]] = {}
    for name, values in weights.items():
        if name.startswith(HEAD):
            stored[name] = values
        elif int8 and values.ndim == 2 and values.shape[1] >= 64:
            scale = (np.abs(values).max(1, keepdims=True) / 127).clip(1e-12)
            stored[name] = np.rint(values / scale).astype(np.int8)
            stored[f"{name}.scale"] = scale
        else:
            stored[name] = values.astype(np.float16)
    path.write_bytes(save({name: np.ascontiguousarray(each) for name, each in stored.items()}))
