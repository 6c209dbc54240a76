"""Random sequences of changes against a plain model of what an index holds."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from indexing import HashEncoder

from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.building import add_passages, build_from_passages, compact, delete, sync
from hopgate.retrievers.encoders import passage_text
from hopgate.retrievers.filters import matches, parse_where
from hopgate.retrievers.index.manifest import info
from hopgate.retrievers.index.reader import Index
from hopgate.retrievers.index.verifying import verify

WIDE = int(os.environ.get("HOPGATE_WIDE", "0"))
WORDS = ("ferry", "lamp", "oats", "quay")
SOURCES = ("a.txt", "b.md", "deep/c.txt", "")


def passage(number: int, source: str, page: int | None) -> Passage:
    title = f"Title {number % 3}" if number % 4 else ""
    return make_passage(title, f"{WORDS[number % 4]} {number}", source, page)


passages = st.builds(
    passage, st.integers(0, 40), st.sampled_from(SOURCES), st.sampled_from([None, 1, 2])
)
several = st.lists(passages, min_size=1, max_size=12)


class Changes(RuleBasedStateMachine):
    """An index, and what it should hold: id → (title, text) and its documents (source, page)."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.index, self.docs = self.folder / "index", self.folder / "docs"
        self.docs.mkdir()
        self.encoder = HashEncoder()
        self.content: dict[str, tuple[str, str]] = {}
        self.places: dict[str, set[tuple[str, int | None]]] = {}
        self.synced: dict[str, str] = {}
        self.encoded: set[str] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def put(self, given: list[Passage]) -> None:
        for each in given:
            self.content[each["id"]] = (each["title"], each["text"])
            place = (each["source"], each.get("page"))
            self.places.setdefault(each["id"], set()).add(place)

    def forget(self, sources: set[str]) -> None:
        for each, places in list(self.places.items()):
            rest = {place for place in places if place[0] not in sources}
            if rest:
                self.places[each] = rest
            else:
                del self.places[each]

    @initialize(given=several)
    def start(self, given: list[Passage]) -> None:
        build_from_passages(given, self.index, self.encoder)
        self.put(given)

    @rule(given=several)
    def build(self, given: list[Passage]) -> None:
        before = set(self.places)
        self.places.clear()
        self.put(given)
        report = build_from_passages(given, self.index, self.encoder, replace=True)
        assert report.added == len(set(self.places) - before)
        assert report.removed == len(before - set(self.places))
        self.synced.clear()

    @rule(given=several)
    def add(self, given: list[Passage]) -> None:
        before = set(self.places)
        replaced = {each["source"] for each in given} - {""}
        self.forget(replaced)
        self.put(given)
        report = add_passages(given, self.index, self.encoder)
        assert report.added == len(set(self.places) - before)
        assert report.removed == len(before - set(self.places))
        assert report.encoded <= report.added

    @rule(source=st.sampled_from([*SOURCES[:3], "*.txt", "s*"]))
    def delete_documents(self, source: str) -> None:
        from fnmatch import fnmatchcase

        names = {name for places in self.places.values() for name, _ in places if name}
        chosen = {name for name in names if fnmatchcase(name, source)}
        rest = [p for p in self.places.values() if any(name not in chosen for name, _ in p)]
        if not chosen or not rest:
            with pytest.raises(ValueError, match=r"has no source|would delete every passage"):
                delete(self.index, [source])
            return
        self.forget(chosen)
        delete(self.index, [source])
        for name in chosen:
            self.synced.pop(name, None)

    @precondition(lambda self: len(self.places) > 1)
    @rule(data=st.data())
    def delete_a_passage(self, data: Any) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.places)))
        delete(self.index, ids=[chosen])
        del self.places[chosen]

    @rule(number=st.integers(0, 9), text=st.sampled_from(["lamp 8", "quay 3 of s", "oats 22"]))
    def sync_a_file(self, number: int, text: str) -> None:
        name = f"s{number % 3}.txt"
        (self.docs / name).write_text(text)
        self.synced = {
            file.name: file.read_text() for file in self.docs.iterdir() if file.is_file()
        }
        sync(self.docs, self.index, self.encoder)
        names = {f"s{each}.txt" for each in range(3)}
        self.forget(names)
        for source, content in self.synced.items():
            self.put([make_passage(Path(source).stem, content, source)])

    @rule()
    def write_again(self) -> None:
        report = compact(self.index)
        assert report.encoded == 0
        assert len(info(self.index)["segments"]) == 1
        assert info(self.index)["dead"] == ""

    @invariant()
    def the_index_agrees_with_the_model(self) -> None:
        if not self.places:
            return
        opened = Index.open(self.index, self.encoder)
        assert len(opened) == info(self.index)["passages"] == len(self.places)
        stored = {
            f"{key:016x}": each
            for key, each in zip(
                opened._words.keys().tolist(), opened._words.read(opened._words.keys()), strict=True
            )
        }
        assert {name: (each.title, each.text) for name, each in stored.items()} == {
            name: self.content[name] for name in self.places
        }
        assert {
            name: {(p.source, p.page) for p in each.places} for name, each in stored.items()
        } == self.places
        self._dense(opened)
        self._bm25(opened)
        self._filters(opened)
        assert verify(self.index, self.encoder).problems == []
        assert len(info(self.index)["segments"]) <= 2 + len(self.places).bit_length()

    def _dense(self, opened: Index) -> None:
        """Every passage is found by its own text, and no other one ever is."""
        (hits,) = opened.search(["anything"], 1000, "dense")
        assert {hit["id"] for hit in hits} == set(self.places)
        some = sorted(self.places)[:3]
        queries = [
            passage_text(Passage(id=name, title=title, text=text, source=""))
            for name in some
            for title, text in [self.content[name]]
        ]
        best = [hits[0]["id"] for hits in opened.search(queries, 1, "dense")]
        assert best == some

    def _bm25(self, opened: Index) -> None:
        for word in WORDS:
            (hits,) = opened.search([word], 1000, "bm25")
            assert {hit["id"] for hit in hits} == {
                name for name in self.places if word in self.content[name][1]
            }

    def _filters(self, opened: Index) -> None:
        for where in ({"source": "a.txt"}, {"source": "*.txt", "page": 1}, {"title": "Title 2"}):
            wanted = parse_where(where)
            expected = {
                name
                for name, places in self.places.items()
                if any(
                    matches({"title": self.content[name][0], "source": s, "page": p}, wanted)
                    for s, p in places
                )
            }
            for mode in ("dense", "hybrid"):
                (hits,) = opened.search(["ferry lamp"], 1000, mode, where)
                assert {hit["id"] for hit in hits} == expected
                assert all(matches(hit, wanted) for hit in hits)


Changes.TestCase.settings = settings(
    max_examples=WIDE or 3,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestChanges = Changes.TestCase
