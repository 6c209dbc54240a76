"""The folder that a router is kept in: a manifest, a tokenizer and safetensors files.

    manifest.json            what the parts are, and the SHA-256 of each file
    tokenizer.json           for `tokenizers`
    shared.safetensors       parameters that all ends have in common
    base.safetensors         what was otherwise before fine-tuning; a new training starts there
    cost-PROFILE.safetensors the rest at α = 0, for one LLM; there may be several
    reliability.safetensors  the rest at α = 1; or reliability-PROFILE, one for each LLM
    presets.json             named settings of α, from `hopgate calibrate --save`

Large matrices may be kept as int8 with one scale a row (`NAME.scale`); the label head is kept in
single precision, all else in half.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

FORMAT = 2
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
LABELS = ("A", "B", "C")
"""No retrieval, one retrieval, several (Adaptive-RAG, section 3.2)."""
BASE, RELIABILITY = "base", "reliability"
COST = "cost-"
"""Before a profile's name: the part that holds its cost end."""
HEAD = "head."
"""Before the names of the last layer's parameters: a row and a bias for each of `LABELS`."""
PROFILE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
CARD = "README.md"
PRESETS = "presets.json"
_OWN_FILE = re.compile(
    rf"{MANIFEST}|{TOKENIZER}|{CARD}|\.?{PRESETS}(-.*)?|(shared|base|(cost|reliability)(-.*)?)\.safetensors"
)
MAX_TOKENS = 384
"""Maximum length of the published recipe."""
BUILTIN = Path(__file__).parent / "weights"


def router_folder(router: Path | str) -> Path:
    """The folder of a router: the one that ships for `builtin`, else the one of that name."""
    return BUILTIN if router == "builtin" else Path(router).expanduser()


@dataclass
class Checkpoint:
    """A router's folder in memory.

    Attributes:
        architecture: One of `hopgate.classifiers.networks.ARCHITECTURES`.
        config: The encoder's configuration, as `transformers` writes it.
        tokenizer: Cuts at `MAX_TOKENS`, does not pad.
        parts: `shared` and, beside it, any of `base`, `cost-PROFILE`, and `reliability` or
            `reliability-PROFILE`: float32 tensors by parameter name.
        training: Data, recipe and figures, as written in the manifest.
    """

    architecture: str
    config: dict[str, Any]
    tokenizer: Tokenizer
    parts: dict[str, dict[str, Tensor]]
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def profiles(self) -> tuple[str, ...]:
        """The LLMs that it has a cost end for; the first is the default."""
        return _profiles(self.parts)

    def ends(self, profile: str) -> tuple[str, str]:
        """The parts that are blended for one LLM: its cost end and its reliability end."""
        own = f"{RELIABILITY}-{profile}"
        return COST + profile, own if own in self.parts else RELIABILITY

    def state(self, part: str) -> dict[str, Tensor]:
        """Every parameter of one part other than `shared`.

        Raises:
            ValueError: If the folder has no such part.
        """
        if part not in self.parts:
            raise ValueError(f"this router folder has no {part!r}; it has {sorted(self.parts)}")
        return self.parts["shared"] | self.parts[part]


def split(
    ends: Mapping[str, Mapping[str, Tensor]], base: Mapping[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    """Stores once what several parts have in common.

    Args:
        ends: Every parameter of each end, by part.
        base: Every parameter before fine-tuning.

    Returns:
        `shared`: what all ends have in common (all of the base, if there are no ends); by end,
        the rest; `base`: where it differs from `shared`.
    """
    import torch

    first, *others = ends.values() or [base]
    same = {n for n, t in first.items() if all(torch.equal(t, other[n]) for other in others)}
    shared = {name: first[name] for name in sorted(same)}
    parts = {end: {n: t for n, t in state.items() if n not in same} for end, state in ends.items()}
    own = {n: t for n, t in base.items() if n not in same or not torch.equal(t, shared[n])}
    return {"shared": shared, BASE: own, **parts}


def read(folder: Path | str) -> Checkpoint:
    """Reads a router's folder, or `builtin`, checking every file against the manifest.

    Raises:
        ValueError: If the folder is no router, or the parts do not fit each other.
        RuntimeError: If a file is missing or was altered.
    """
    from tokenizers import Tokenizer

    folder = router_folder(folder)
    manifest = verify(folder)
    parts = {part: _read_tensors(folder / name) for part, name in manifest["tensors"].items()}
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
    )


def profiles_in(folder: Path | str = BUILTIN) -> tuple[str, ...]:
    """The LLMs that a router's folder has a cost end for; errors are those of `verify`."""
    return _profiles(verify(folder)["tensors"])


def _profiles(parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.removeprefix(COST) for part in parts if part.startswith(COST))


_State = tuple[tuple[str, int, int], ...]
_verified: dict[Path, tuple[_State, dict[str, Any]]] = {}
_verifying = Lock()


def verify(folder: Path | str = BUILTIN) -> dict[str, Any]:
    """Checks a router's folder, or `builtin`, against its manifest, without loading the weights.

    A folder that was found whole is hashed again only when one of its files has another size or
    time.

    Returns:
        The manifest.

    Raises:
        ValueError: If the folder is no router, or of another format.
        RuntimeError: If a file is missing or was altered.
    """
    folder = router_folder(folder)
    place = folder.resolve()
    with _verifying:
        state = _state(place)
        held = _verified.get(place)
        if held is None or held[0] != state:
            manifest = _read_manifest(folder)
            for name, expected in manifest["sha256"].items():
                _check(folder / name, expected)
            held = _verified[place] = (state, manifest)
        return deepcopy(held[1])


def _state(folder: Path) -> _State:
    """Name, size and time of each file; nothing for a folder that is not there."""
    if not folder.is_dir():
        return ()
    files = [
        (entry.name, entry.stat())
        for entry in os.scandir(folder)
        if _OWN_FILE.fullmatch(entry.name) and not entry.name.startswith(".")
    ]
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in files))


def write(checkpoint: Checkpoint, out: Path, card: str, *, int8: bool, overwrite: bool) -> None:
    """Writes a router's folder, whole or not at all.

    Args:
        checkpoint: What to write.
        out: The folder; it must not exist unless `overwrite`.
        card: The model card, for README.md.
        int8: Keep matrices as int8 with a scale a row instead of in half precision.
        overwrite: Replace an existing folder.

    Raises:
        ValueError: If the folder exists and `overwrite` is false.
    """
    check_free(out, overwrite)
    with _replacing(out) as folder:
        checkpoint.tokenizer.save(str(folder / TOKENIZER))
        files = {part: f"{part}.safetensors" for part in checkpoint.parts}
        for part, name in files.items():
            _write_tensors(checkpoint.parts[part], folder / name, int8)
        manifest = {
            "format": FORMAT,
            "architecture": checkpoint.architecture,
            "config": checkpoint.config,
            "tokenizer": TOKENIZER,
            "max_tokens": MAX_TOKENS,
            "tensors": files,
            "sha256": {name: _sha256(folder / name) for name in (TOKENIZER, *files.values())},
            "training": checkpoint.training,
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        (folder / CARD).write_text(card, encoding="utf-8")


def check_free(out: Path, overwrite: bool) -> None:
    """Raises ValueError if `out` is there and must not be replaced.

    Only an empty folder, or a router's with nothing beside it, is ever replaced.
    """
    if not out.exists():
        there = next(path for path in out.absolute().parents if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ValueError(f"{out} cannot be made in {there}; choose another folder")
        return
    if not overwrite:
        raise ValueError(f"{out} exists; choose another folder or ask to overwrite it")
    names = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
    if names and not _is_router(out):
        raise ValueError(f"{out} is not a router's folder and is not overwritten; choose another")
    if others := sorted(name for name in names if not _OWN_FILE.fullmatch(name)):
        raise ValueError(
            f"{out} holds {others[0]!r} beside the router and is not overwritten; move it away or "
            "choose another folder"
        )


def _is_router(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(manifest, dict)
        and "architecture" in manifest
        and isinstance(manifest.get("tensors"), dict)
    )


@contextlib.contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """A temporary sibling folder that takes the place of `out` when all went well."""
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
        found, tensors, hashes = manifest["format"], manifest["tensors"], manifest["sha256"]
        missing = {*tensors.values(), manifest["tokenizer"]} - hashes.keys()
        _ = manifest["config"], manifest["max_tokens"], manifest["training"]
        _ = manifest["architecture"]
        if found == FORMAT and manifest["max_tokens"] != MAX_TOKENS:
            raise ValueError(f"max_tokens is {manifest['max_tokens']!r}, not {MAX_TOKENS}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RuntimeError(f"{path} is damaged ({error!r}); train or install it again") from error
    if found != FORMAT:
        raise ValueError(f"{path} has format {found!r}; this version of hopgate reads {FORMAT}")
    if missing or any(Path(name).name != name for name in hashes):
        raise RuntimeError(f"{path} is damaged: files without a hash, or outside the folder")
    return dict(manifest)


def _check(path: Path, expected: str) -> None:
    if not path.is_file():
        raise RuntimeError(f"{path} is missing; install or train the router again")
    if _sha256(path) != expected:
        raise RuntimeError(
            f"{path} was altered: its SHA-256 is not the manifest's; install it again"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_parts(folder: Path, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    if "shared" not in parts:
        raise RuntimeError(f"{folder / MANIFEST} names no shared tensors; train the router again")
    shapes = {
        part: {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for part, tensors in parts.items()
        if part not in ("shared", BASE)
    }
    for part, found in shapes.items():
        if found != next(iter(shapes.values())):
            raise ValueError(
                f"{folder}: the parameters of {part!r} differ in name or shape from "
                f"{next(iter(shapes))!r}; both ends must come from one base"
            )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(path)
    except SafetensorError as error:
        raise RuntimeError(f"{path} is not a readable safetensors file: {error}") from error
    return {
        name: tensor.float() * stored[f"{name}.scale"].float()
        if f"{name}.scale" in stored
        else tensor.float()
        for name, tensor in stored.items()
        if not name.endswith(".scale")
    }


def _write_tensors(tensors: Mapping[str, Tensor], path: Path, int8: bool) -> None:
    import torch
    from safetensors.torch import save

    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().float()
        if name.startswith(HEAD):
            stored[name] = tensor
        elif int8 and tensor.dim() == 2 and tensor.shape[1] >= 64:
            scale = (tensor.abs().amax(1, keepdim=True) / 127).clamp_min(1e-12)
            stored[name] = (tensor / scale).round().to(torch.int8)
            stored[f"{name}.scale"] = scale
        else:
            stored[name] = tensor.half().contiguous()
    path.write_bytes(save(stored))
