"""The manifest of an index: which version is the current one, and what is in it.

An index is a folder. Its `manifest.json` names the current version and describes every file of
it; the files lie in a folder of the version's own, `v000001` and so on. A change writes a new
version and then replaces the manifest, so that no one ever opens half of one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from hopgate.common.files import sha256

if TYPE_CHECKING:
    from hopgate.retrievers.encoders import Encoder

FORMAT_VERSION = 2
"""Version of the folder's layout; a newer or older one is refused."""

MANIFEST = "manifest.json"
VECTORS = "faiss.index"
EXACT = "vectors.npy"
"""The vectors themselves, float32, beside every FAISS index but a flat one, which holds them."""
PASSAGES = "passages.sqlite"
WORDS = "bm25"
METRIC = "inner_product"

HASH_AT_OPEN_BYTES = 8 << 20
"""Files up to this size are hashed whenever an index is opened (some 20 ms); larger ones only
have their size checked, until `verify`."""

Manifest = dict[str, Any]

_FIELDS: dict[str, type] = {
    "version": int,
    "encoder": dict,
    "metric": str,
    "factory": str,
    "search": dict,
    "passages": int,
    "created": str,
    "files": dict,
}
_ENCODER_FIELDS: dict[str, type] = {"name": str, "fingerprint": str}
_PREFIXES = ("query_prefix", "passage_prefix")
_FILE_FIELDS: dict[str, type] = {"bytes": int, "sha256": str}


class DamagedError(ValueError):
    """The files of an index do not match its manifest, or the manifest cannot be read."""


def damaged(folder: Path, what: str) -> DamagedError:
    """Return the error for a damaged index."""
    return DamagedError(f"the index at {folder} is damaged or incomplete: {what}; build it again")


def version_folder(folder: Path, manifest: Manifest) -> Path:
    """Return the folder with the files of the version that a manifest describes."""
    return folder / version_name(manifest["version"])


def version_name(version: int) -> str:
    """Return the name of a version's folder."""
    return f"v{version:06d}"


def info(path: Path | str) -> Manifest:
    """Read the manifest of an index and look at the sizes of its files, without opening it.

    Returns:
        `format_version`, `version` (counted from 1), `encoder` (`name`, `dimension`, `pooling`,
        `normalize`, `max_tokens`, `query_prefix`, `passage_prefix`, `fingerprint`), `metric`,
        `factory`, `auto` (whether the factory was chosen for the collection), `search` (FAISS's
        settings for a search, and the recall they were measured to have), `passages` and `sources`
        (how many), `roots` (folders that were indexed), `created` (UTC, ISO 8601), `files` (name →
        `bytes` and `sha256`) and `checksum` (of all the rest).

    Raises:
        ValueError: the folder is missing, is no index, is half-written, or is of another format
            version.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ValueError(f"there is no index at {path}: build one with `hopgate index build`")
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{path} is not an index: it has no {MANIFEST}")
    manifest = _read(folder)
    _check_files(folder, manifest)
    return manifest


def _read(folder: Path) -> Manifest:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged(folder, f"{MANIFEST} cannot be read") from error
    _check_fields(folder, "", manifest, {"format_version": int})
    version = manifest["format_version"]
    check_not_newer(folder, version)
    if version < FORMAT_VERSION:
        raise ValueError(
            f"the index at {folder} has the old format version {version}, and this hopgate reads "
            f"version {FORMAT_VERSION}: build the index again, into a new folder"
        )
    _check_fields(folder, "", manifest, _FIELDS)
    _check_fields(folder, "encoder.", manifest["encoder"], _ENCODER_FIELDS)
    for name in _PREFIXES:
        manifest["encoder"].setdefault(name, "")  # the first indexes of this format had none
    _check_fields(folder, "files.", manifest["files"], {VECTORS: dict, PASSAGES: dict})
    return dict(manifest)


def check_not_newer(folder: Path, version: int) -> None:
    """Raise ValueError for an index of a newer format."""
    if version > FORMAT_VERSION:
        raise ValueError(
            f"the index at {folder} has format version {version}, and this hopgate reads version "
            f"{FORMAT_VERSION}: update hopgate, or build the index again, into a new folder"
        )


def _check_files(folder: Path, manifest: Manifest) -> None:
    version = version_folder(folder, manifest)
    for name, entry in manifest["files"].items():
        _check_fields(folder, f"files.{name}.", entry, _FILE_FIELDS)
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise damaged(folder, f"{MANIFEST} lists {name}, which is outside the index")
        _check_size(folder, version / name, entry["bytes"])


def _check_fields(folder: Path, prefix: str, found: Any, fields: dict[str, type]) -> None:
    if not isinstance(found, dict):
        raise damaged(folder, f"{MANIFEST} is not a JSON object")
    if missing := fields.keys() - found.keys():
        names = ", ".join(prefix + name for name in sorted(missing))
        raise damaged(folder, f"{MANIFEST} lacks {names}")
    for name, kind in fields.items():
        if not isinstance(found[name], kind):
            raise damaged(folder, f"{prefix}{name} of {MANIFEST} is {found[name]!r:.60}")


def _check_size(folder: Path, file: Path, expected: int) -> None:
    name = file.relative_to(folder)
    if not file.is_file():
        raise damaged(folder, f"{name} is missing")
    if (size := file.stat().st_size) != expected:
        raise damaged(folder, f"{name} has {size} bytes, not {expected}")


def check_hashes(folder: Path, manifest: Manifest) -> None:
    """Hash the small files of a version, see `HASH_AT_OPEN_BYTES`.

    Raises:
        ValueError: one has changed since it was written.
    """
    version = version_folder(folder, manifest)
    for name, entry in manifest["files"].items():
        if entry["bytes"] <= HASH_AT_OPEN_BYTES and sha256(version / name) != entry["sha256"]:
            raise damaged(folder, f"{version.name}/{name} has changed since it was built")


def check_all_hashes(folder: Path, manifest: Manifest) -> None:
    """Hash every file of a version.

    Raises:
        ValueError: one has changed since it was written.
    """
    if wrong := changed_files(folder, manifest):
        raise damaged(folder, f"{wrong[0]} has changed since it was built")


def changed_files(folder: Path, manifest: Manifest) -> list[str]:
    """Return the files of a version that changed since they were written."""
    version = version_folder(folder, manifest)
    return [
        f"{version.name}/{name}"
        for name, entry in manifest["files"].items()
        if sha256(version / name) != entry["sha256"]
    ]


def looks_like_one(folder: Path) -> bool | None:
    """Return whether a folder's manifest is that of an index; None if it has none.

    Raises:
        ValueError: it is that of an index of a newer format.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return False
    if not isinstance(manifest, dict) or not isinstance(manifest.get("encoder"), dict):
        return False
    if not isinstance(version := manifest.get("format_version"), int):
        return False
    check_not_newer(folder, version)
    return True


def describe(encoder: Encoder) -> dict[str, Any]:
    """Return what the manifest says about an encoder."""
    return {
        "name": encoder.name,
        "dimension": encoder.dimension,
        "pooling": encoder.pooling,
        "normalize": encoder.normalize,
        "max_tokens": encoder.max_tokens,
        **{name: getattr(encoder, name) for name in _PREFIXES},
        "fingerprint": encoder.fingerprint,
    }


def describe_files(version: Path) -> dict[str, dict[str, Any]]:
    """Return the size and hash of every file of a version, by its path below it."""
    files = sorted(file for file in version.rglob("*") if file.is_file())
    return {
        file.relative_to(version).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": sha256(file),
        }
        for file in files
    }


def to_bytes(manifest: Manifest) -> bytes:
    """Return a manifest as it is written, with its checksum."""
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    text = json.dumps(body | {"checksum": checksum}, indent=2, ensure_ascii=False)
    return f"{text}\n".encode(errors="backslashreplace")  # halves of surrogate pairs, as JSON does
