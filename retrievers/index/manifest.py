"""The manifest of an index: its current state, and every file that belongs to it.

An index is a folder. Its `manifest.json` describes the encoder, Tantivy's segments with words and
passages (`words/`) and FAISS's segments of vectors (`vectors/`). A change writes new files beside
those that are there and then replaces the manifest, so that no one ever opens half of a change.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NotRequired, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from hopgate.common.cache import Cache
from hopgate.common.files import sha256
from hopgate.retrievers.hybrid import Mode

if TYPE_CHECKING:
    from hopgate.retrievers.encoders import Encoder

FORMAT_VERSION: Literal[3] = 3
"""Version of the folder's layout; a newer or older one is refused."""

MANIFEST = "manifest.json"
WORDS = "words"
VECTORS = "vectors"
METRIC: Literal["inner_product"] = "inner_product"

MAX_MANIFEST_BYTES = 16 << 20
_MAX_REASON_CHARS = 300
"""Tantivy repeats its whole description in some errors."""
HASH_AT_OPEN_BYTES = 8 << 20
"""Files up to this size are hashed whenever an index is opened (some 20 ms); larger ones only
have their size checked, until `verify`."""

FILE_NAME = re.compile(
    rf"{WORDS}/[0-9a-f]{{32}}(\.\d+)?\.[a-z]+|{VECTORS}/(\d+\.(faiss|npy|keys)|dead-\d+\.keys)"
)
"""The files in the folders of an index."""

Count = Annotated[int, Field(ge=0)]


class EncoderInfo(TypedDict):
    """The encoder of an index; its attributes are those of `Encoder`."""

    name: str
    dimension: Annotated[int, Field(ge=1, le=65_536)]
    pooling: str
    normalize: bool
    max_tokens: Count
    query_prefix: str
    passage_prefix: str
    fingerprint: str


class SearchSettings(TypedDict, total=False):
    """FAISS's settings for a search, see `factory.tune`."""

    nprobe: Annotated[int, Field(ge=1)]
    efSearch: Annotated[int, Field(ge=1, le=1 << 30)]
    oversample: Annotated[int, Field(ge=1)]
    recall: Annotated[float, Field(ge=0, le=1)]
    queries: Count


class SegmentInfo(TypedDict):
    """One segment of vectors.

    Attributes:
        name: Its files are `vectors/NAME.…`.
        rows: How many vectors it has, deleted ones included.
        factory: FAISS's factory string.
        search: See `SearchSettings`.
    """

    name: Annotated[str, Field(pattern="^[0-9]{1,12}$")]
    rows: Annotated[int, Field(ge=1)]
    factory: str
    search: SearchSettings


@with_config(ConfigDict(extra="allow"))
class WordsSegment(TypedDict):
    """The part of a segment in Tantivy's `meta.json` that hopgate reads."""

    segment_id: Annotated[str, Field(pattern="^[0-9a-f-]{32,36}$")]
    max_doc: Count


@with_config(ConfigDict(extra="allow"))
class WordsMeta(TypedDict):
    """The part of Tantivy's `meta.json` that hopgate reads; the rest is passed on."""

    segments: list[WordsSegment]


class FileInfo(TypedDict):
    """Size and hash of a file."""

    bytes: Count
    sha256: str


class Manifest(TypedDict):
    """The content of `manifest.json`.

    Attributes:
        format_version: `FORMAT_VERSION`.
        version: Counts the changes, from 1.
        encoder: See `EncoderInfo`.
        metric: How vectors are compared.
        factory: FAISS's factory string of the largest segment.
        auto: Whether the factory was chosen for the collection.
        language: Chooses the analyzer of the words.
        mode: The default mode, `auto`.
        mode_reason: Why.
        background: Scores of unrelated questions, see `retrievers.coverage`; empty if the encoder
            could not be measured.
        passages: How many there are.
        sources: How many documents they come from.
        roots: Folders that were indexed.
        segments: See `SegmentInfo`.
        dead: The file under `vectors/` with the keys of deleted vectors; empty if there are none.
        words: The content of Tantivy's `meta.json`.
        created: Time of the last change, UTC, ISO 8601.
        files: Every file, by its path below the folder.
        checksum: SHA-256 of all the rest.
    """

    format_version: Literal[3]
    version: Annotated[int, Field(ge=1)]
    encoder: EncoderInfo
    metric: Literal["inner_product"]
    factory: str
    auto: bool
    language: str
    mode: Mode
    mode_reason: str
    background: NotRequired[list[float]]
    passages: Annotated[int, Field(ge=1)]
    sources: Count
    roots: list[str]
    segments: list[SegmentInfo]
    dead: str
    words: WordsMeta
    created: str
    files: dict[Annotated[str, Field(pattern=f"^({FILE_NAME.pattern})$")], FileInfo]
    checksum: str


class Built(TypedDict):
    """The part that an index and an outside store share: the encoder of the vectors."""

    encoder: EncoderInfo


class DamagedError(ValueError):
    """The files of an index do not match its manifest, or the manifest cannot be read."""


def damaged(folder: Path | str, what: str) -> DamagedError:
    """Return the error for a damaged index."""
    what = what[:_MAX_REASON_CHARS]
    return DamagedError(f"the index at {folder} is damaged or incomplete: {what}; build it again")


_hashes: Cache[str] = Cache()


def info(path: Path | str, *, hashed: bool = False) -> Manifest:
    """Read the manifest of an index and look at the sizes of its files, without opening it.

    Args:
        path: The folder of the index.
        hashed: Hash files up to `HASH_AT_OPEN_BYTES` too, each once per process.

    Raises:
        ValueError: The folder is missing, is not an index, is half-written, or has another format
            version, or a file has changed since it was written.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ValueError(f"there is no index at {path}: build one with `hopgate index build`")
    if not (folder / MANIFEST).exists():
        raise ValueError(f"{path} is not an index: it has no {MANIFEST}")
    manifest = parse(content(folder), folder)
    for name, entry in manifest["files"].items():
        try:
            found = (folder / name).stat()
        except OSError as error:
            raise damaged(folder, f"{name} is missing") from error
        if not stat.S_ISREG(found.st_mode):
            raise damaged(folder, f"{name} is not a regular file")
        if found.st_size != entry["bytes"]:
            raise damaged(folder, f"{name} has {found.st_size} bytes, not {entry['bytes']}")
        if hashed and entry["bytes"] <= HASH_AT_OPEN_BYTES:
            file = (folder / name).absolute()
            if _hashes.get(file, partial(sha256, file), [file]) != entry["sha256"]:
                raise damaged(folder, f"{name} has changed since it was written")
    return manifest


_ADAPTER: TypeAdapter[Manifest] = TypeAdapter(Manifest)


def parse(content: bytes, folder: Path | str) -> Manifest:
    """Parse the content of `manifest.json`.

    Args:
        content: The bytes of the file.
        folder: Its folder, for error messages.

    Raises:
        ValueError: It is damaged, or of another format version.
    """
    if len(content) > MAX_MANIFEST_BYTES:
        raise damaged(folder, f"{MANIFEST} has over {MAX_MANIFEST_BYTES >> 20} MiB")
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise damaged(folder, f"{MANIFEST} cannot be read") from error
    version = found.get("format_version") if isinstance(found, dict) else None
    if type(version) is int and version != FORMAT_VERSION:
        update = "update hopgate, or " if version > FORMAT_VERSION else ""
        raise ValueError(
            f"the index at {folder} has format version {version}, and this hopgate reads version "
            f"{FORMAT_VERSION}: {update}build it again, into a new folder"
        )
    try:
        manifest = _ADAPTER.validate_python(found, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))[:80] or "the whole"
        raise damaged(folder, f"{field} of {MANIFEST}: {first['msg']}") from None
    needed = [
        f"{VECTORS}/{each['name']}{suffix}"
        for each in manifest["segments"]
        for suffix in (".faiss", ".keys")
    ]
    for name in [*needed, manifest["dead"]]:
        if name and name not in manifest["files"]:
            raise damaged(folder, f"files of {MANIFEST}: {name[:80]!r} is missing")
    return manifest


def content(folder: Path) -> bytes:
    """Read the bytes of a manifest, one more than allowed at most."""
    file = folder / MANIFEST
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise damaged(folder, f"{MANIFEST} is not a regular file")
        with file.open("rb") as handle:
            return handle.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise damaged(folder, f"{MANIFEST} cannot be read") from error


def changed_files(folder: Path, manifest: Manifest, only: Iterable[str] | None = None) -> list[str]:
    """Return the files of an index, or only some, that changed since they were written."""
    names = manifest["files"] if only is None else only
    return [n for n in names if sha256(folder / n) != manifest["files"][n]["sha256"]]


def describe(encoder: Encoder) -> EncoderInfo:
    """Return the manifest's entry for an encoder."""
    found = {name: getattr(encoder, name) for name in EncoderInfo.__annotations__}
    return cast(EncoderInfo, found)


def to_bytes(manifest: Manifest) -> bytes:
    """Return a manifest as it is written, with its checksum."""
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    text = json.dumps(body | {"checksum": checksum}, indent=1, ensure_ascii=False)
    return f"{text}\n".encode(errors="backslashreplace")  # halves of surrogate pairs, as JSON does
