"""The folder that a router is kept in: a manifest, a tokenizer and safetensors files.

    manifest.json          what the parts are, and the SHA-256 of each file
    tokenizer.json         for `tokenizers`
    shared.safetensors     parameters that base, cost and reliability end have in common
    base.safetensors       the rest as it was before fine-tuning (what a new training starts from)
    cost.safetensors       the rest at α = 0
    reliability.safetensors  the rest at α = 1

Matrices may be kept as int8 with one scale a row (`NAME.scale`); all else is half precision.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor
    from transformers import T5ForConditionalGeneration

FORMAT = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
LABELS = ("A", "B", "C")
"""No retrieval, one retrieval, several (Adaptive-RAG, section 3.2)."""
ENDS = ("cost", "reliability")
CARD = "README.md"
OWN_FILES = {MANIFEST, TOKENIZER, CARD} | {f"{p}.safetensors" for p in ("shared", "base", *ENDS)}
MAX_TOKENS = 384
"""Maximum length of the published recipe."""
BUILTIN = Path(__file__).parent / "weights"
TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")


@dataclass
class Checkpoint:
    """A router's folder in memory.

    Attributes:
        config: The T5 configuration.
        labels: Token id of each of A, B and C.
        tokenizer: Cuts at `MAX_TOKENS`, does not pad.
        parts: `shared` and, beside it, any of `base`, `cost` and `reliability`: float32 tensors
            by parameter name.
        profile: Which LLM the cost end was trained for.
        training: Data, recipe and figures, as written in the manifest.
    """

    config: dict[str, Any]
    labels: dict[str, int]
    tokenizer: Tokenizer
    parts: dict[str, dict[str, Tensor]]
    profile: str = "custom"
    training: dict[str, Any] = field(default_factory=dict)

    def state(self, end: str) -> dict[str, Tensor]:
        """Every parameter of one end (`base`, `cost` or `reliability`)."""
        if end not in self.parts:
            raise ValueError(f"this router folder has no {end!r} end; it has {sorted(self.parts)}")
        return self.parts["shared"] | self.parts[end]


def model_from(
    config: Mapping[str, Any], state: Mapping[str, Tensor]
) -> T5ForConditionalGeneration:
    """A T5 over exactly the tensors of `state`, in evaluation mode.

    Raises:
        ValueError: If names or shapes are not those of `config`.
    """
    import torch
    from transformers.models.t5.configuration_t5 import T5Config
    from transformers.models.t5.modeling_t5 import T5ForConditionalGeneration

    with torch.device("meta"):
        model: Any = T5ForConditionalGeneration(T5Config(**config))
    full = {name: state["shared.weight"] for name in TIED if "shared.weight" in state} | dict(state)
    try:
        model.load_state_dict(full, strict=True, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"the weights do not fit the router's T5 configuration: {reason}"
        ) from error
    model.encoder.embed_tokens.weight = model.decoder.embed_tokens.weight = model.shared.weight
    if "lm_head.weight" not in state:
        model.lm_head.weight = model.shared.weight
    model.eval()
    return cast("T5ForConditionalGeneration", model)


def untied(model: T5ForConditionalGeneration) -> dict[str, Tensor]:
    """The model's parameters, each shared one once."""
    shared = model.shared.weight
    return {
        name: tensor.detach()
        for name, tensor in model.state_dict().items()
        if name not in TIED or tensor.data_ptr() != shared.data_ptr()
    }


def split(ends: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Puts the parameters that all `ends` have in common apart, as `shared`."""
    import torch

    first, *others = ends.values()
    same = {n for n, t in first.items() if all(torch.equal(t, other[n]) for other in others)}
    parts = {end: {n: t for n, t in state.items() if n not in same} for end, state in ends.items()}
    return {"shared": {name: first[name] for name in sorted(same)}, **parts}


def label_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The one token of each of A, B and C.

    Raises:
        ValueError: If the tokenizer splits a label or gives two labels one token.
    """
    ids = {label: tokenizer.encode(label, add_special_tokens=False).ids for label in LABELS}
    if any(len(found) != 1 for found in ids.values()) or len({i[0] for i in ids.values()}) != 3:
        raise ValueError(f"the tokenizer gives the labels {ids}; each must be a token of its own")
    return {label: found[0] for label, found in ids.items()}


def read(folder: Path) -> Checkpoint:
    """Reads a router's folder, checking every file against the manifest.

    Raises:
        ValueError: If the folder is no router, or the parts do not fit each other.
        RuntimeError: If a file is missing or was altered.
    """
    from tokenizers import Tokenizer

    folder = folder.expanduser()
    manifest = verify(folder)
    parts = {part: _read_tensors(folder / name) for part, name in manifest["tensors"].items()}
    _check_parts(folder, parts)
    tokenizer = Tokenizer.from_file(str(folder / manifest["tokenizer"]))
    tokenizer.no_padding()
    tokenizer.enable_truncation(manifest["max_tokens"])
    return Checkpoint(
        config=manifest["config"],
        labels=manifest["labels"],
        tokenizer=tokenizer,
        parts=parts,
        profile=manifest["profile"],
        training=manifest["training"],
    )


_State = tuple[tuple[str, int, int], ...]
_verified: dict[Path, tuple[_State, dict[str, Any]]] = {}
_verifying = Lock()


def verify(folder: Path | str = BUILTIN) -> dict[str, Any]:
    """Checks a router's folder against its manifest, without loading the weights.

    A folder that was found whole is hashed again only when one of its files has another size or
    time.

    Returns:
        The manifest.

    Raises:
        ValueError: If the folder is no router, or of another format.
        RuntimeError: If a file is missing or was altered.
    """
    folder = Path(folder).expanduser()
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
    files = [(entry.name, entry.stat()) for entry in os.scandir(folder) if entry.is_file()]
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
            "architecture": "T5ForConditionalGeneration",
            "profile": checkpoint.profile,
            "config": checkpoint.config,
            "tokenizer": TOKENIZER,
            "labels": checkpoint.labels,
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
        return
    if not overwrite:
        raise ValueError(f"{out} exists; choose another folder or ask to overwrite it")
    names = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
    if names and not _is_router(out):
        raise ValueError(f"{out} is not a router's folder and is not overwritten; choose another")
    if others := sorted(names - OWN_FILES):
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
        if out.exists():
            os.replace(out, old)
        try:
            os.replace(new, out)
        except OSError:
            if old.exists():
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
        _ = manifest["config"], manifest["labels"], manifest["max_tokens"]
        _ = manifest["profile"], manifest["training"]
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
        if part != "shared"
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
        if int8 and tensor.dim() == 2 and tensor.shape[1] >= 64:
            scale = (tensor.abs().amax(1, keepdim=True) / 127).clamp_min(1e-12)
            stored[name] = (tensor / scale).round().to(torch.int8)
            stored[f"{name}.scale"] = scale
        else:
            stored[name] = tensor.half().contiguous()
    path.write_bytes(save(stored))
