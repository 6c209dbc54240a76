"""The words and passages of an index, in Tantivy: BM25, stored passages, filters and deletes.

A passage is one document of Tantivy, whatever the number of files that contain its text; `places`
lists them. Tantivy writes lock files even to read and deletes files that it no longer needs, so it
only ever works in a folder of links to the index's files, never in the index itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import tantivy

from hopgate.common.words import spaced
from hopgate.retrievers.base import Metadata, Passage, passage_id
from hopgate.retrievers.filters import (
    FIELDS,
    Filter,
    Range,
    is_pattern,
    matches,
    same,
    split,
    text_of,
)
from hopgate.retrievers.hybrid import codes, dense_weight
from hopgate.retrievers.language import analyzer

if TYPE_CHECKING:
    from hopgate.retrievers.index.vectors import Keys

Values = tuple[tuple[str, str | int | float | bool | tuple[str, ...]], ...]
METADATA = "metadata"
_NO_KEYS: Keys = np.empty(0, dtype=np.uint64)
_PLACE_FIELDS = ("source", "page", "section")
_KINDS = ("text", "number", "member")
"""How a value of the metadata was given: ranges compare dates and numbers, but no lists."""
_LONGEST_TERM = 1_000
"""Bytes of a title or section from which its hash is indexed: Tantivy drops terms over 64 KB."""
MAX_SOURCE_BYTES = 16_384
"""Longest source, by which documents are found and deleted: Tantivy drops terms over 64 KB."""
_HEAP_BYTES = 512 << 20
"""Most memory for indexing; Tantivy starts a new segment when it is full, and few segments are
faster to write and to search. More than one thread takes as long, since Python feeds it."""
MAX_QUERY_TERMS = 512
"""A longer query is cut here, as encoders cut theirs."""
_READ_AT_A_TIME = 64
_FILTERS_REMEMBERED = 32
_STORE = {"docstore_compression": "none", "docstore_blocksize": 4_096}
"""Passages are read one by one at random: small blocks without compression take a third of the time
of Tantivy's defaults, and the texts half as much space again."""
_META = "meta.json"
_STORE_FOOTER_BYTES = 28


class UnreadableError(ValueError):
    """A passage is missing or damaged."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A document that contains a passage.

    Attributes:
        source: The path of its file relative to the indexed folder; may be empty.
        page: Its page, counted from 1; None without pages.
        section: The headings above the passage; may be empty.
        stamp: Size and time of the file when it was read, by which `sync` detects a change; empty
            unless it is a file of an indexed folder.
        metadata: The passage's metadata there, as pairs.
    """

    source: str
    page: int | None = None
    section: str = ""
    stamp: str = ""
    metadata: Values = ()


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """A passage as it is stored: its content, and every document that contains it."""

    title: str
    text: str
    places: Annotated[tuple[Place, ...], msgspec.Meta(min_length=1)]

    def passage(self, key: int, wanted: Filter = ()) -> Passage:
        """Return the passage, in the first place that a filter allows.

        A filter may keep documents apart, so the names of others must not show.
        """
        for place in self.places:
            found = Passage(id=identity(key), title=self.title, text=self.text, source=place.source)
            if place.page is not None:
                found["page"] = place.page
            if place.section:
                found["section"] = place.section
            if place.metadata:
                found["metadata"] = unfrozen(place.metadata)
            if not wanted or matches(found, wanted):
                return found
        return Passage(id=identity(key), title=self.title, text=self.text, source="")


def frozen(metadata: Metadata) -> Values:
    """Return metadata as pairs, which can be compared and hashed."""
    return tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in metadata.items())


def unfrozen(values: Values) -> Metadata:
    """Return what was given to `frozen`."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values}


encode: Callable[[Stored], bytes] = msgspec.json.Encoder().encode
decode: Callable[[bytes], Stored] = msgspec.json.Decoder(Stored).decode


def key_of(identity: str) -> int:
    """Return a passage's id as a number."""
    return int(identity, 16)


def identity(key: int) -> str:
    """Return the id of the passage with this number."""
    return f"{key:016x}"


class Words:
    """The words of an index, opened for searching from any number of threads.

    Args:
        files: Tantivy's files.
        meta: What Tantivy's `meta.json` contains.
        language: Chooses the analyzer, see `language.analyzer`.

    Attributes:
        files: Tantivy's files.
        meta: What Tantivy's `meta.json` contains.
        outdated: They cannot take metadata, and are written anew by the next change.

    Raises:
        ValueError: The files are damaged.
        OSError: There is no folder for temporary files.
    """

    def __init__(self, files: Sequence[Path], meta: Mapping[str, Any], language: str) -> None:
        """Open the files; the folder of links goes at once, since they are mapped."""
        self.files, self.meta = files, meta
        self._analyzer = analyzer(language)
        self._selections: dict[Filter, tantivy.Query] = {}  # an lru_cache would keep this open
        linked = tempfile.TemporaryDirectory(prefix="hopgate-", ignore_cleanup_errors=True)
        with linked as folder, tantivy_faults():
            link(files, Path(folder), meta)
            index = tantivy.Index.open(folder)
            index.config_reader("manual", 0)
            self._schema = index.schema
            self.outdated = self._schema == _schema(metadata=False)
            if self._schema != _schema() and not self.outdated:
                raise UnreadableError("the words have other fields than those of an index")
            self._searcher = index.searcher()

    def __len__(self) -> int:
        """Count the passages."""
        return int(self._searcher.num_docs)

    def search(self, query: str, k: int, wanted: Filter = ()) -> list[tuple[int, float]]:
        """Return the keys of the best passages by BM25, with their scores, best first."""
        terms = self._words_of(query)
        if not terms:
            return []
        with tantivy_faults():
            twice = codes(terms, self._count)
        words = self._one_of("words", [*terms, *twice], "freq")
        if wanted:
            allowed = tantivy.Query.const_score_query(self._selection(wanted), 0.0)
            must = tantivy.Occur.Must
            words = tantivy.Query.boolean_query([(must, words), (must, allowed)])
        with tantivy_faults():
            hits = self._searcher.search(words, max(1, min(k, len(self))), count=False).hits
            keys = self._searcher.fast_field_values("id", [address for _, address in hits])
        return [(int(key or 0), score) for key, (score, _) in zip(keys, hits, strict=True)]

    def dense_weight(self, query: str) -> float:
        """Return the vectors' part of a query's fused scores, see `hybrid.dense_weight`."""
        with tantivy_faults():
            return dense_weight(self._words_of(query), self._count)

    def _count(self, word: str, _: int) -> int:
        return int(self._searcher.doc_freq("words", word))

    def _words_of(self, query: str) -> list[str]:
        found: list[str] = self._analyzer.analyze(spaced(query))
        return found[:MAX_QUERY_TERMS]

    def _one_of(self, field: str, values: Sequence[Any], option: str) -> tantivy.Query:
        should, term = tantivy.Occur.Should, tantivy.Query.term_query
        terms = [(should, term(self._schema, field, value, option)) for value in values]
        return tantivy.Query.boolean_query(terms)

    def keys(self, wanted: Filter = ()) -> Keys:
        """Return the keys of all passages that a filter allows, in ascending order."""
        return self._keys(self._selection(wanted))

    def _keys(self, query: tantivy.Query) -> Keys:
        hits = self._by_key(query, len(self))
        found = np.fromiter((key for key, _ in hits), dtype=np.uint64, count=len(hits))
        return found[::-1].copy()

    def _by_key(self, query: tantivy.Query, k: int) -> list[tuple[int, tantivy.DocAddress]]:
        """Return keys and addresses, the largest keys first."""
        with tantivy_faults():
            found = self._searcher.search(query, max(1, k), count=False, order_by_field="id")
        hits: list[tuple[int, tantivy.DocAddress]] = found.hits
        return hits

    def read(self, keys: Iterable[int], *, checked: bool = False) -> Iterator[Stored]:
        """Read passages, in the order given; `checked` compares their content with their ids.

        Raises:
            ValueError: There is no passage with such a key, or it is damaged.
        """
        rest = iter(keys)
        while chunk := [int(key) for key in islice(rest, _READ_AT_A_TIME)]:
            addresses = dict(self._by_key(self._one_of("id", chunk, "basic"), len(chunk)))
            if missing := [key for key in chunk if key not in addresses]:
                raise UnreadableError(f"passage {identity(missing[0])} is missing")
            with tantivy_faults():
                documents = [self._searcher.doc(addresses[key]) for key in chunk]
            for key, document in zip(chunk, documents, strict=True):
                yield _stored(key, document.get_first("passage"), checked=checked)

    def sources(self, prefix: str = "") -> list[str]:
        """List the documents whose source starts with a prefix."""
        return self._terms("source", prefix)

    def has(self, source: str) -> bool:
        """Return whether there is a document with this source."""
        return bool(self._first(source))

    def stamp(self, source: str) -> str:
        """Return the stamp of a document's file; empty if there is none, or no such document."""
        for stored in self.read(self._first(source)):
            return next(place.stamp for place in stored.places if place.source == source)
        return ""

    def _first(self, source: str) -> list[int]:
        """Return the key of a passage of a document; none if there is no such document."""
        return [key for key, _ in self._by_key(self._one_of("source", [source], "basic"), 1)]

    def code(self) -> Keys:
        """Return the keys of the passages of source code; none if all of them are."""
        found = self.of("kind", ["code"])
        return found if len(found) < len(self) else _NO_KEYS

    def of(self, field: str, values: Sequence[str]) -> Keys:
        """Return the keys of the passages with one of these exact values, in ascending order."""
        exact = field in FIELDS
        return self._keys(self._any(field, values) if exact else self._known(field, values, ()))

    def _selection(self, wanted: Filter) -> tantivy.Query:
        """Return a filter's query; made once, since a pattern lists sources."""
        found = self._selections.get(wanted)
        if found is None:
            if len(self._selections) >= _FILTERS_REMEMBERED:
                self._selections.clear()
            found = self._selections[wanted] = self._select(wanted)
        return found

    def _select(self, wanted: Filter) -> tantivy.Query:
        """Make the query that selects the passages a filter allows.

        Tantivy knows the values of a passage, but not which of them belong to the same place; where
        that matters, passages with several places are checked one by one.
        """
        if not wanted:
            return tantivy.Query.all_query()
        must = tantivy.Occur.Must
        conditions = [(must, self._condition(field, values)) for field, values in wanted]
        found = tantivy.Query.boolean_query(conditions)
        if sum(field not in ("id", "title") for field, _ in wanted) > 1:
            several = tantivy.Query.term_query(self._schema, "several", 1)
            keys = self._keys(tantivy.Query.boolean_query([*conditions, (must, several)])).tolist()
            foreign = [
                key
                for key, stored in zip(keys, self.read(keys), strict=True)
                if not matches(stored.passage(key, wanted), wanted)
            ]
            if foreign:
                others = tantivy.Query.term_set_query(self._schema, "id", foreign)
                without = (tantivy.Occur.MustNot, others)
                found = tantivy.Query.boolean_query([(must, found), without])
        return found

    def _condition(self, field: str, values: Sequence[str | Range]) -> tantivy.Query:
        """Select by terms; patterns and ranges become those of the terms that they match."""
        texts, ranges = split(values)
        if field not in FIELDS:
            return self._known(field, texts, ranges)
        exact = {value for value in texts if field != "source" or not is_pattern(value)}
        for pattern in (value for value in texts if value not in exact):
            prefix = re.split(r"[*?[]", pattern, maxsplit=1)[0]
            wanted: Filter = (("source", (pattern,)),)
            exact.update(s for s in self.sources(prefix) if matches({"source": s}, wanted))
        if ranges:
            pages = self._terms("page", "")
            exact.update(p for p in pages if any(each.holds(int(p)) for each in ranges))
        return self._any(field, sorted(exact))

    def _known(self, field: str, texts: Sequence[str], ranges: Sequence[Range]) -> tantivy.Query:
        if self.outdated:
            return tantivy.Query.empty_query()
        found = [_fact(field, kind, text) for kind in _KINDS for text in texts]
        for kind in ("number", "text") if ranges else ():
            start = _fact(field, kind, "")
            for term in self._terms(METADATA, start):
                text = term[len(start) :]
                value = same(text)[-1] if kind == "number" else text
                if any(each.holds(value) for each in ranges):
                    found.append(term)
        return self._any(METADATA, found)

    def _terms(self, field: str, prefix: str) -> list[str]:
        """List the terms of a field that start with a prefix."""
        with tantivy_faults():
            found = self._searcher.terms_with_prefix(field, prefix, tantivy.Query.all_query())
        return [term for term, _ in found]

    def _any(self, field: str, values: Sequence[str]) -> tantivy.Query:
        terms: Sequence[Any] = values
        if field == "id":
            terms = [key_of(value) for value in values if re.fullmatch("[0-9a-f]{16}", value)]
        elif field in ("title", "section"):
            terms = [_term(value) for value in values]
        if not terms:
            return tantivy.Query.empty_query()
        return tantivy.Query.term_set_query(self._schema, field, terms)


class WordsWriter:
    """Changes the words of an index in a folder of its own; `commit` makes the new files.

    Args:
        folder: An empty folder to work in.
        language: Chooses the analyzer.
        current: The words as they are; None for a new index.
    """

    def __init__(self, folder: Path, language: str, current: Words | None = None) -> None:
        """Link the current files and start a writer."""
        self._folder, self._language = folder, language
        with tantivy_faults():
            if current is not None:
                link(current.files, folder, current.meta)
                index = tantivy.Index.open(str(folder))
            else:
                index = _create(folder)
            index.register_tokenizer("words", analyzer(language))
            self._schema = index.schema
            self._writer = index.writer(_HEAP_BYTES, num_threads=1)

    def put(self, passages: Iterable[tuple[int, Stored]]) -> None:
        """Add passages; those that are there already have to be removed first."""
        with tantivy_faults():
            for key, stored in passages:
                places = stored.places
                document = {
                    "id": key,
                    "several": [1] * (len(places) > 1),
                    "words": spaced(f"{stored.title} {stored.text}"),
                    "title": [_term(stored.title)] if stored.title else [],
                    "source": [place.source for place in places if place.source],
                    "page": [str(place.page) for place in places if place.page is not None],
                    "section": [_term(place.section) for place in places if place.section],
                    METADATA: list({fact for place in places for fact in _facts(place.metadata)}),
                    "passage": encode(stored),
                }
                self._writer.add_document(tantivy.Document.from_dict(document, self._schema))

    def remove(self, keys: Sequence[int]) -> None:
        """Remove passages."""
        if keys:
            with tantivy_faults():
                # By query: Tantivy's delete by term misses unsigned numbers.
                gone = tantivy.Query.term_set_query(self._schema, "id", list(keys))
                self._writer.delete_documents_by_query(gone)

    def commit(self) -> Words:
        """Finish the change and open the words as they are now.

        Raises:
            ValueError: Tantivy cannot write, for example to a full disk.
        """
        with tantivy_faults():
            self._writer.commit()
            self._writer.wait_merging_threads()
        meta = json.loads((self._folder / _META).read_text(encoding="utf-8"))
        files = []
        for segment in meta["segments"]:
            stem = str(segment["segment_id"]).replace("-", "")
            deletes = (segment.get("deletes") or {}).get("opstamp")
            for file in sorted(self._folder.glob(f"{stem}.*")):
                if file.suffix != ".del" or file.name == f"{stem}.{deletes}.del":
                    files.append(file)
        return Words(files, meta, self._language)


def link(files: Iterable[Path], folder: Path, meta: Mapping[str, Any]) -> None:
    """Fill a folder in which Tantivy can work: links to its files, and its `meta.json`."""
    for file in files:
        if file.suffix == ".store":
            _check_store(file)
        (folder / file.name).symlink_to(file.resolve())
    (folder / _META).write_text(json.dumps(meta), encoding="utf-8")


def _check_store(file: Path) -> None:
    """Check the one length in a file that Tantivy allocates memory for unchecked.

    At the end of a file stand its footer, the footer's length and a magic number; before them, the
    footer of the store with the offset of its skip index, which begins with how many layers it has.

    Raises:
        ValueError: The skip index has more layers than the file has bytes.
    """
    with file.open("rb") as handle, mmap(handle.fileno(), 0, access=ACCESS_READ) as content:
        end = len(content) - 8 - int.from_bytes(content[-8:-4], "little") - _STORE_FOOTER_BYTES
        offset = int.from_bytes(content[max(0, end + 4) : max(0, end + 12)], "little")
        layers = 0
        for place, byte in enumerate(content[offset : offset + 10]):  # 7 bits each, the last marked
            layers |= (byte & 127) << 7 * place
            if byte & 128:
                break
        if layers > len(content):
            raise ValueError(f"{file.name} is damaged")


@contextmanager
def tantivy_faults() -> Iterator[None]:
    """Raise UnreadableError for Tantivy's errors and panics, which are not `Exception`s."""
    try:
        yield
    except UnreadableError:
        raise
    except BaseException as error:
        if not isinstance(error, ValueError) and type(error).__module__ != "pyo3_runtime":
            raise
        reason = (str(error).splitlines() or [""])[0]
        raise UnreadableError(f"Tantivy failed: {reason}") from error


def _create(folder: Path) -> tantivy.Index:
    """Create an index; its settings can only be chosen in its `meta.json`."""
    tantivy.Index(_schema(), str(folder))
    meta = json.loads((folder / _META).read_text(encoding="utf-8"))
    (folder / _META).write_text(json.dumps(meta | {"index_settings": _STORE}), encoding="utf-8")
    return tantivy.Index.open(str(folder))


@lru_cache(maxsize=2)
def _schema(*, metadata: bool = True) -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("id", indexed=True, fast=True)
    builder.add_unsigned_field("several", indexed=True)
    builder.add_text_field("words", tokenizer_name="words", index_option="freq")
    for name in ("title", *_PLACE_FIELDS):
        builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
    builder.add_bytes_field("passage", stored=True)
    if metadata:
        builder.add_text_field(METADATA, tokenizer_name="raw", index_option="basic")
    return builder.build()


def _term(value: str) -> str:
    encoded = value.encode()
    return value if len(encoded) <= _LONGEST_TERM else hashlib.sha256(encoded).hexdigest()


def _facts(metadata: Values) -> Iterator[str]:
    for name, value in metadata:
        if isinstance(value, tuple):
            yield from (_fact(name, "member", each) for each in value)
        else:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            yield _fact(name, "number" if number else "text", text_of(value))


def _fact(name: str, kind: str, text: str) -> str:
    """Return the term of a value of the metadata; as JSON, its beginning can be no other's."""
    return _term(f"{json.dumps(name)}{kind}:{text}")


def _stored(key: int, found: Any, *, checked: bool) -> Stored:
    try:
        stored = decode(found)
        if checked and passage_id(stored.title, stored.text) != identity(key):
            raise ValueError
    except (TypeError, ValueError, RecursionError) as error:
        raise UnreadableError(f"passage {identity(key)} is damaged") from error
    return stored
