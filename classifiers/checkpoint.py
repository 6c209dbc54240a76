"""A router's folder: a manifest, a tokenizer and safetensors files.

    manifest.json            the parts, the SHA-256 of each file, and for each LLM its dial and a
                             summary of its training questions
    tokenizer.json           for `tokenizers`
    features.onnx            the network without its weights and its label head, if cost and
                             reliability weights differ only there (see `hopgate.common.onnx`)
    shared.safetensors       parameters that all weights have in common
    base.safetensors         weights as they were before fine-tuning; a new training starts from it
    cost-PROFILE.safetensors the rest at α = 0 (cost weights), one file for each LLM
    reliability.safetensors  the rest at α = 1 (reliability weights); or reliability-PROFILE,
                             one file for each LLM
    presets.json             saved α settings, from `hopgate calibrate --save`

Large matrices may be stored as int8 with one scale a row (`NAME.scale`). The label head is stored
in single precision, everything else in half precision.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field

from hopgate.classifiers.dial import Dial
from hopgate.classifiers.drift import Summary
from hopgate.common.cache import Cache
from hopgate.common.errors import explain
from hopgate.common.files import read_json, sha256

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Weights = Mapping[str, NDArray[np.float32]]
"""Parameters by name."""
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
CURRENT = "current"
"""The file that names the version in use; see `hopgate.classifiers.versions`."""
MAX_TOKENS = 384
"""Maximum length of the published recipe."""
BUILTIN_FOLDER = Path(__file__).parent / "weights"
_IN_MEMORY = ("architecture", "config", "training", "dials", "alphas", "known")
"""Fields that `Checkpoint` takes from the manifest as they are."""


class RouterManifest(BaseModel):
    """The content of manifest.json.

    Raises:
        pydantic.ValidationError: A field is missing or wrong.
    """

    format: int
    architecture: str
    config: dict[str, Any]
    tokenizer: str
    max_tokens: Literal[384]
    tensors: dict[str, str]
    graph: str | None = None
    sha256: dict[Annotated[str, Field(pattern=r"^[^/\\]+$")], str]
    training: dict[str, Any]
    dials: dict[str, Annotated[list[float], AfterValidator(Dial)]] = {}
    alphas: dict[str, Annotated[float, Field(ge=0, le=1)]] = {}
    known: dict[str, Summary] = {}


def router_folder(router: Path | str) -> Path:
    """Return the folder of a router's version in use; `builtin` is the one that ships with hopgate.

    Without versions (`hopgate.classifiers.versions`), that is the router itself.
    """
    if router == "builtin":
        return BUILTIN_FOLDER
    for pointer in _pointers(router):
        with suppress(OSError):
            return pointer.with_name(pointer.read_text(encoding="utf-8").strip())
    return Path(router).expanduser()


def router_files(router: Path | str) -> list[Path]:
    """Return the files that a router is read from; when one changes, the router has changed."""
    folder = router_folder(router)
    return [*_pointers(router), *(sorted(folder.iterdir()) if folder.is_dir() else [])]


def _pointers(router: Path | str) -> list[Path]:
    """Return the files, which may not exist, that can name a router's version in use."""
    path = Path(router).expanduser()
    return [versions_of(place) / CURRENT for place in (path, path.resolve())]


def versions_of(router: Path) -> Path:
    """Return the folder of a router's versions, which may not exist."""
    return Path(f"{os.path.abspath(router)}.versions")


@dataclass
class Checkpoint:
    """A router's folder in memory.

    Attributes:
        architecture: The kind of network, such as `t5`.
        config: The encoder's configuration, as `transformers` writes it.
        tokenizer: Cuts at `MAX_TOKENS`, does not pad.
        parts: `shared`, and any of `base`, `cost-PROFILE`, and `reliability` or
            `reliability-PROFILE`: float32 arrays by parameter name.
        training: Data, recipe and figures, as written in the manifest.
        graph: Computes the features on ONNX Runtime; None for a router whose body blends,
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
        if missing := {"shared", part} - self.parts.keys():
            raise ValueError(f"the router has no {missing.pop()!r}; it has {sorted(self.parts)}")
        return self.parts["shared"] | self.parts[part]

    @property
    def one_pass(self) -> bool:
        """Whether all weights have one body, so that all α share one pass of it."""
        parts = [each for part, each in self.parts.items() if part not in ("shared", BASE)]
        return all(name.startswith(HEAD) for part in parts for name in part)


def read(folder: Path | str, *, base: bool = True) -> Checkpoint:
    """Read a router's folder, or `builtin`, and check every file against the manifest.

    Args:
        folder: The folder.
        base: Whether to read the weights that a new training starts from.

    Raises:
        ValueError: The folder is not a router's.
        RuntimeError: A file is missing or was altered.
    """
    from tokenizers import Tokenizer

    folder = router_folder(folder).resolve()  # of a link, the version that it leads to now
    manifest = verify(folder)
    parts = {
        part: _read_weights(folder / name)
        for part, name in manifest.tensors.items()
        if base or part != BASE
    }
    tokenizer = Tokenizer.from_file(str(folder / manifest.tokenizer))
    tokenizer.no_padding()
    tokenizer.enable_truncation(manifest.max_tokens)
    graph = (folder / manifest.graph).read_bytes() if manifest.graph else None
    same = manifest.model_copy(deep=True)  # the one in memory is for all callers
    return Checkpoint(
        parts=parts,
        tokenizer=tokenizer,
        graph=graph,
        **{name: getattr(same, name) for name in _IN_MEMORY},
    )


def profiles_in(folder: Path | str = BUILTIN_FOLDER) -> tuple[str, ...]:
    """Return the LLMs that a router has cost weights for; raises the errors of `verify`."""
    return _profiles(verify(folder).tensors)


def _profiles(parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.removeprefix(COST) for part in parts if part.startswith(COST))


_manifests = Cache[RouterManifest]()


def verify(folder: Path | str = BUILTIN_FOLDER) -> RouterManifest:
    """Check a router's folder, or `builtin`, against its manifest, without loading the weights.

    An intact folder is hashed again only after one of its files has changed.

    Returns:
        The manifest, which is not to be changed.

    Raises:
        ValueError: The folder is not a router's, or has another format.
        RuntimeError: A file is missing or was altered.
    """
    place = router_folder(folder)
    return _manifests.get(place, lambda: _verify(place), router_files(place))


def _verify(folder: Path) -> RouterManifest:
    manifest = _read_manifest(folder)
    named = {*manifest.sha256, *manifest.tensors.values(), manifest.tokenizer, manifest.graph}
    for name in sorted(filter(None, named)):
        path = folder / name
        if not path.is_file():
            raise RuntimeError(f"{path} is missing; install or train the router again")
        if sha256(path) != manifest.sha256.get(name):
            raise RuntimeError(
                f"{path} was altered: its SHA-256 is not the manifest's; install it again"
            )
    return manifest


def is_router(folder: Path) -> bool:
    """Return whether a folder has a router's manifest."""
    try:
        manifest = read_json(folder / MANIFEST, "manifest")
    except ValueError:
        return False
    return "architecture" in manifest and isinstance(manifest.get("tensors"), dict)


def _read_manifest(folder: Path) -> RouterManifest:
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} is not a router's folder: it has no {MANIFEST}")
    try:
        document = read_json(path, "manifest")
        if document.get("format") == FORMAT:
            return RouterManifest.model_validate(document)
    except ValueError as error:
        said = explain(error)
        raise RuntimeError(f"{path} is damaged ({said}); train or install it again") from error
    raise ValueError(
        f"{path} has format {document.get('format')!r}; this version of hopgate reads {FORMAT}"
    )


def _read_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    from safetensors.numpy import load_file

    stored, found = load_file(path), {}
    for name, values in stored.items():
        if not name.endswith(".scale"):
            scale = stored.get(f"{name}.scale")
            single = values.astype(np.float32)
            found[name] = single if scale is None else single * scale.astype(np.float32)
    return found
