"""A router's folder: a manifest, a tokenizer and safetensors files.

    manifest.json            the parts, the SHA-256 of each file, and for each LLM its dial and a
                             summary of its training questions
    tokenizer.json           for `tokenizers`
    features.onnx            the network without its weights and its label head, if cost and
                             reliability weights differ only there (see `hopgate.common.onnx`)
    shared.safetensors       parameters that all weights have in common
    base.safetensors         what differed before fine-tuning; a new training starts from it
    cost-PROFILE.safetensors the rest at α = 0 (cost weights), one file for each LLM
    reliability.safetensors  the rest at α = 1 (reliability weights); or reliability-PROFILE,
                             one file for each LLM
    presets.json             saved α settings, from `hopgate calibrate --save`

Large matrices may be stored as int8 with one scale a row (`NAME.scale`). The label head is stored
in single precision, everything else in half precision.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hopgate.classifiers.dial import Dial
from hopgate.classifiers.drift import Summary
from hopgate.common.cache import Cache, file_stamp
from hopgate.common.files import json_bytes, sha256

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    Weights = Mapping[str, NDArray[np.float32]]
    """Parameters by name."""

Found = TypeVar("Found")

FORMAT = 2
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
GRAPH = "features.onnx"
BASE, RELIABILITY = "base", "reliability"
COST = "cost-"
"""Prefix of the parts that hold cost weights; a profile's name follows."""
HEAD = "head."
"""Prefix of the last layer's parameters: a row and a bias for each label."""
PROFILE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
CARD = "README.md"
SAVED_ALPHAS = "presets.json"
_FIELDS = {
    *("format", "architecture", "config", "tokenizer"),
    *("max_tokens", "tensors", "sha256", "training"),
}
_OWN_FILE = re.compile(
    rf"{MANIFEST}|{TOKENIZER}|{GRAPH}|{CARD}|\.?{SAVED_ALPHAS}.*|(shared|base|(cost|reliability)(-.*)?)\.safetensors"
)
MAX_TOKENS = 384
"""Maximum length of the published recipe."""
_TRIES = 5
BUILTIN_FOLDER = Path(__file__).parent / "weights"


def router_folder(router: Path | str) -> Path:
    """Return the folder of a router; `builtin` is the one that ships with hopgate."""
    return BUILTIN_FOLDER if router == "builtin" else Path(router).expanduser()


@dataclass
class Checkpoint:
    """A router's folder in memory.

    Attributes:
        architecture: One of `hopgate.classifiers.networks.ARCHITECTURES`.
        config: The encoder's configuration, as `transformers` writes it.
        tokenizer: Cuts at `MAX_TOKENS`, does not pad.
        parts: `shared`, and any of `base`, `cost-PROFILE`, and `reliability` or
            `reliability-PROFILE`: float32 arrays by parameter name.
        training: Data, recipe and figures, as written in the manifest.
        graph: What computes the features on ONNX Runtime; None for a router whose body blends,
            and for one that was trained before routers had a graph.
        dials: The dial of each LLM that has one, by profile; for the others, α itself is the
            blend's weight.
        alphas: The default α of each LLM that has one, by profile.
        known: For the LLMs that have one, by profile: the summary of its training questions.
    """

    architecture: str
    config: dict[str, Any]
    tokenizer: Tokenizer
    parts: dict[str, dict[str, NDArray[np.float32]]]
    training: dict[str, Any] = field(default_factory=dict)
    graph: bytes | None = None
    dials: dict[str, Dial] = field(default_factory=dict)
    alphas: dict[str, float] = field(default_factory=dict)
    known: dict[str, Summary] = field(default_factory=dict)

    @property
    def profiles(self) -> tuple[str, ...]:
        """The LLMs that it has cost weights for; the first is the default."""
        return _profiles(self.parts)

    def blended_parts(self, profile: str) -> tuple[str, str]:
        """Return the two parts that are blended for one LLM: cost and reliability weights."""
        own = f"{RELIABILITY}-{profile}"
        return COST + profile, own if own in self.parts else RELIABILITY

    def state(self, part: str) -> dict[str, NDArray[np.float32]]:
        """Return all parameters of one part, the shared ones included.

        Raises:
            ValueError: There is no such part.
        """
        if part not in self.parts:
            raise ValueError(f"this router folder has no {part!r}; it has {sorted(self.parts)}")
        return self.parts["shared"] | self.parts[part]

    @property
    def one_pass(self) -> bool:
        """Whether all weights have one body, so that all α share one pass of it."""
        parts = [each for part, each in self.parts.items() if part not in ("shared", BASE)]
        return all(name.startswith(HEAD) for part in parts for name in part)


def split(
    weights: Mapping[str, Weights], base: Weights
) -> dict[str, dict[str, NDArray[np.float32]]]:
    """Separate what several sets of weights have in common, to store it once.

    Args:
        weights: All parameters of each set of weights, by part.
        base: All parameters before fine-tuning.

    Returns:
        `shared`: what all weights have in common (all of the base if there are none); by part,
        the rest; `base`: where the base differs from `shared`.
    """
    first, *others = weights.values() or [base]
    same = {n for n, t in first.items() if all(np.array_equal(t, other[n]) for other in others)}
    shared = {name: first[name] for name in sorted(same)}
    parts = {p: {n: t for n, t in state.items() if n not in same} for p, state in weights.items()}
    own = {n: t for n, t in base.items() if n not in same or not np.array_equal(t, shared[n])}
    return {"shared": shared, BASE: own, **parts}


def read(folder: Path | str, *, base: bool = True) -> Checkpoint:
    """Read a router's folder, or `builtin`, and check every file against the manifest.

    Args:
        folder: The folder.
        base: Whether to read what a new training starts from.

    Raises:
        ValueError: The folder is not a router's, or its parts do not fit each other.
        RuntimeError: A file is missing or was altered.
    """
    return _while_it_changes(router_folder(folder), lambda place: _read(place, base))


def _read(folder: Path, base: bool) -> Checkpoint:
    from tokenizers import Tokenizer

    manifest = verify(folder)
    parts = {
        part: _read_weights(folder / name)
        for part, name in manifest["tensors"].items()
        if base or part != BASE
    }
    _check_parts(folder, parts)
    tokenizer = Tokenizer.from_file(str(folder / manifest["tokenizer"]))
    tokenizer.no_padding()
    tokenizer.enable_truncation(manifest["max_tokens"])
    return Checkpoint(
        architecture=manifest["architecture"],
        config=manifest["config"],
        tokenizer=tokenizer,
        parts=parts,
        training=manifest["training"],
        graph=(folder / manifest["graph"]).read_bytes() if manifest.get("graph") else None,
        dials={name: Dial(each) for name, each in manifest.get("dials", {}).items()},
        alphas=manifest.get("alphas", {}),
        known={name: Summary(**each) for name, each in manifest.get("known", {}).items()},
    )


def profiles_in(folder: Path | str = BUILTIN_FOLDER) -> tuple[str, ...]:
    """Return the LLMs that a router has cost weights for; raises the errors of `verify`."""
    return _profiles(verify(folder)["tensors"])


def _profiles(parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.removeprefix(COST) for part in parts if part.startswith(COST))


_manifests = Cache[dict[str, Any]]()


def verify(folder: Path | str = BUILTIN_FOLDER) -> dict[str, Any]:
    """Check a router's folder, or `builtin`, against its manifest, without loading the weights.

    An intact folder is hashed again only after one of its files has changed.

    Returns:
        The manifest.

    Raises:
        ValueError: The folder is not a router's, or has another format.
        RuntimeError: A file is missing or was altered.
    """

    def look(place: Path) -> dict[str, Any]:
        files = [path for path in place.iterdir() if _is_weights(path)] if place.is_dir() else []
        return _manifests.get(place, lambda: _verify(place), sorted(files))

    return deepcopy(_while_it_changes(router_folder(folder), look))


def _while_it_changes(folder: Path, look: Callable[[Path], Found]) -> Found:
    """Look at a router, and again if another one has taken its place meanwhile.

    A link is followed once, since the version that it leads to stays as it is.
    """
    for _ in range(_TRIES):
        place = folder.resolve()
        before = file_stamp(place / MANIFEST)
        try:
            found = look(place)
        except (ValueError, RuntimeError, OSError):
            if _unchanged(place, before):
                raise
        else:
            if _unchanged(place, before):
                return found
    raise RuntimeError(f"{folder} is being replaced again and again; try again later")


def _unchanged(place: Path, before: object) -> bool:
    return place.resolve() == place and file_stamp(place / MANIFEST) == before


def _is_weights(path: Path) -> bool:
    return path.suffix == ".safetensors" or path.name in (MANIFEST, TOKENIZER, GRAPH)


def _verify(folder: Path) -> dict[str, Any]:
    manifest = _read_manifest(folder)
    for name, expected in manifest["sha256"].items():
        path = folder / name
        if not path.is_file():
            raise RuntimeError(f"{path} is missing; install or train the router again")
        if sha256(path) != expected:
            raise RuntimeError(
                f"{path} was altered: its SHA-256 is not the manifest's; install it again"
            )
    return manifest


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
            "known": {name: each.as_json() for name, each in checkpoint.known.items()},
            "training": checkpoint.training,
        }
        (folder / MANIFEST).write_bytes(json_bytes(manifest))
        (folder / CARD).write_text(card, encoding="utf-8")


def check_free(out: Path, overwrite: bool) -> None:
    """Check that a router's folder can be written to `out`.

    Only an empty folder, or one that holds a router and nothing else, is ever replaced.

    Raises:
        ValueError: `out` cannot be created, or exists and must not be replaced.
    """
    if not out.exists():
        there = next(path for path in out.absolute().parents if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ValueError(f"{out} cannot be created in {there}; choose another folder")
        return
    if not overwrite:
        raise ValueError(f"{out} exists; choose another folder, or give --overwrite")
    names = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
    if names and not is_router(out):
        raise ValueError(
            f"{out} is not a router's folder, so it is not overwritten; choose another"
        )
    if others := sorted(name for name in names if not _OWN_FILE.fullmatch(name)):
        raise ValueError(
            f"{out} contains {others[0]!r} besides the router, so it is not overwritten; move that "
            "file or choose another folder"
        )


def is_router(folder: Path) -> bool:
    """Return whether a folder has a router's manifest."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(manifest, dict)
        and "architecture" in manifest
        and isinstance(manifest.get("tensors"), dict)
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
        try:
            if out.exists():
                os.replace(out, old)
            os.replace(new, out)
        except BaseException:
            if old.exists() and not out.exists():
                os.replace(old, out)
            raise


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} is not a router's folder: it has no {MANIFEST}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if absent := _FIELDS - manifest.keys():
            raise ValueError(f"no {min(absent)}")
        found, hashes = manifest["format"], manifest["sha256"]
        named = {*manifest["tensors"].values(), manifest["tokenizer"], manifest.get("graph")}
        unhashed = named - {None} - hashes.keys()
        if found == FORMAT and manifest["max_tokens"] != MAX_TOKENS:
            raise ValueError(f"max_tokens is {manifest['max_tokens']!r}, not {MAX_TOKENS}")
        for weights in manifest.get("dials", {}).values():
            Dial(weights)  # raises if they are not those of a dial
        for alpha in manifest.get("alphas", {}).values():
            if not 0 <= alpha <= 1:
                raise ValueError(f"α is {alpha!r}")
        for summary in manifest.get("known", {}).values():
            Summary(**summary)  # raises if it is none
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise RuntimeError(f"{path} is damaged ({error}); train or install it again") from error
    if found != FORMAT:
        raise ValueError(f"{path} has format {found!r}; this version of hopgate reads {FORMAT}")
    if unhashed or any(Path(name).name != name for name in hashes):
        raise RuntimeError(f"{path} is damaged: files without a hash, or outside the folder")
    return dict(manifest)


def _check_parts(folder: Path, parts: Mapping[str, Weights]) -> None:
    if "shared" not in parts:
        raise RuntimeError(f"{folder / MANIFEST} lists no shared tensors; train the router again")
    shapes = {
        part: {name: values.shape for name, values in found.items()}
        for part, found in parts.items()
        if part not in ("shared", BASE)
    }
    for part, found in shapes.items():
        if found != next(iter(shapes.values())):
            raise ValueError(
                f"{folder}: the parameters of {part!r} differ in name or shape from "
                f"{next(iter(shapes))!r}; all weights must come from one base"
            )


def _read_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        stored = load_file(path)
    except (SafetensorError, KeyError) as error:  # a type that numpy does not have
        raise RuntimeError(f"{path} is not a readable safetensors file: {error}") from error
    found = {}
    for name, values in stored.items():
        if not name.endswith(".scale"):
            scale = stored.get(f"{name}.scale")
            single = values.astype(np.float32)
            found[name] = single if scale is None else single * scale.astype(np.float32)
    return found


def _write_weights(weights: Weights, path: Path, int8: bool) -> None:
    from safetensors.numpy import save

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
