"""Building, opening and searching an index, on real documents, MiniLM and FAISS."""

import json
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from documents import paragraph, write_docx, write_pdf
from indexing import edit_manifest, files, flip, one_of

from hopgate.common.files import sha256
from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import build_from_passages, build_index, delete
from hopgate.retrievers.documents.cutting import CHUNK_CHARACTERS
from hopgate.retrievers.documents.reading import load_documents
from hopgate.retrievers.encoders import Encoder, load_encoder
from hopgate.retrievers.index.manifest import info
from hopgate.retrievers.index.reader import Index, check_index, load_index
from hopgate.retrievers.index.verifying import verify
from hopgate.retrievers.sources import sample_path

PASSAGES = [
    make_passage("Skerry Light", "The lighthouse on Skerry was first lit in 1811."),
    make_passage("Harbour bakery", "Bread is baked before dawn and sold by seven."),
    make_passage("Ferry", "The ferry crosses to the mainland twice a day in summer."),
]
HTML = """<html><head><title>Tidal mill</title><style>body {color: teal}</style>
<script>var tracker = "secret";</script></head>
<body><h1>Tidal mill</h1><p>The mill grinds <b>barley</b>, never wheat.</p>
<p>Its wheel turns with the tide.</p></body></html>"""


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one good file of each kind, a broken PDF, a hidden file and a loop."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "lighthouse.txt").write_text("The lighthouse on Skerry was first lit in 1811.\n")
    (folder / "bakery.md").write_text(
        "# Harbour bakery\n\nBread is baked before dawn.\n\n## Prices\n\nA loaf costs two crowns.\n"
    )
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "mill.html").write_text(HTML)
    write_pdf(folder / "ferry.pdf", ["The ferry has a red funnel.", "Its captain is Oona Marr."])
    (folder / "people.jsonl").write_text(
        json.dumps({"title": "Wren Holm", "text": "Wren Holm kept bees on the north shore."}) + "\n"
    )
    write_docx(
        folder / "quay.docx", paragraph("Quay", "Titel"), paragraph("The quay is of red granite.")
    )
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4\nthis is no PDF")
    (folder / ".hidden.txt").write_text("Hidden words.")
    (folder / "deep" / "loop").symlink_to(folder)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "index"
    build_from_passages(PASSAGES, out)
    return out


@pytest.fixture
def index(built: Path, tmp_path: Path) -> Path:
    """A copy of the built index, to be damaged."""
    return Path(shutil.copytree(built, tmp_path / "index"))


@pytest.mark.parametrize(
    ("question", "title", "text"),
    [
        ("When was the lighthouse lit?", "lighthouse", "1811"),
        ("How much is a loaf?", "Harbour bakery > Prices", "two crowns"),
        ("What grain does the mill grind?", "Tidal mill", "grinds barley, never wheat."),
        ("Who is the captain of the ferry?", "ferry", "Oona Marr"),
        ("Who kept bees?", "Wren Holm", "north shore"),
        ("What stone is the quay made of?", "Quay", "red granite"),
    ],
)
def test_every_kind_of_file_is_found_again(
    folder_index: Index, question: str, title: str, text: str
) -> None:
    ((best, *_),) = folder_index.search([question], k=3)
    assert best["title"] == title
    assert text in best["text"]
    assert not {"secret", "teal"} & set(best["text"].split())


@pytest.fixture(scope="module")
def folder_index(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Index:
    out = tmp_path_factory.mktemp("folder") / "index"
    build_index([documents], out)
    return load_index(out)


def test_a_broken_pdf_is_named_and_the_rest_goes_on(documents: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    report = build_index([documents], tmp_path / "index", progress=lambda *step: seen.append(step))
    (skipped,) = report.skipped
    assert skipped.path.endswith("broken.pdf")
    assert skipped.reason
    assert (report.files, report.passages, report.duplicates) == (6, 8, 0)
    last = {stage: (done, total) for stage, done, total in seen}
    assert list(last.items()) == [
        ("reading files", (7, 7)),
        ("indexing words", (8, 8)),
        ("encoding passages", (8, 8)),
    ]


def test_a_long_text_is_split_with_nothing_lost(tmp_path: Path) -> None:
    sentences = [f"Sentence number {i} tells of stone {i * 7}." for i in range(200)]
    (tmp_path / "long.txt").write_text("\n".join(sentences))
    texts = [p["text"] for p in load_documents([tmp_path / "long.txt"]).passages]
    assert all(len(text) <= CHUNK_CHARACTERS for text in texts)
    assert all(any(sentence in text for text in texts) for sentence in sentences)
    assert 12 <= len(texts) <= 20


def test_many_unreadable_files_still_make_one_short_line(tmp_path: Path) -> None:
    for i in range(9):
        (tmp_path / f"{i}.txt").write_text(" ")
    with pytest.raises(ValueError, match=r"2\.txt: it contains no text; and 6 more\)$"):
        load_documents([tmp_path])


def test_what_a_build_needs_is_tried_before_a_file_is_read(
    documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a file was read")

    monkeypatch.setattr("hopgate.retrievers.building.read_files", read)
    (tmp_path / "file").touch()
    for out in (tmp_path / "file" / "index", Path("/dev/null/index"), Path("/proc/hopgate/index")):
        with pytest.raises(ValueError, match="cannot be written"):
            build_index([documents], out)
    with pytest.raises(ValueError, match="unknown encoder 'bert'"):
        build_index([documents], tmp_path / "new" / "index", encoder="bert")
    monkeypatch.setitem(sys.modules, "faiss", None)
    for use in (
        lambda: build_index([documents], tmp_path / "new" / "index"),
        lambda: check_index(sample_path()),
    ):
        with pytest.raises(RuntimeError, match=r"pip install 'hopgate\[cpu\]'"):
            use()
    assert sorted(os.listdir(tmp_path)) == ["file", "new"]
    assert os.listdir(tmp_path / "new") == []


def test_k_over_the_collection_gives_all_and_wrong_arguments_are_refused(built: Path) -> None:
    index = load_index(built)
    assert [len(hits) for hits in index.search(["lighthouse", "bread"], k=50)] == [3, 3]
    assert index.search([], k=5) == []
    for given, message in (
        ((["lighthouse"], 0), "k is 0"),
        (("bread", 3), "queries is a string: give a list"),
        ((["bread"], 3, "fuzzy"), "unknown mode 'fuzzy': use dense, bm25, hybrid"),
    ):
        with pytest.raises(ValueError, match=message):
            index.search(*given)


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid"])
def test_a_query_may_hold_anything(built: Path, mode: str) -> None:
    index = load_index(built)
    plain = index.search(["bread \ufffd"], 3, mode)
    assert index.search(["bread \ud800"], 3, mode) == plain
    for query in ("", "\x00", "🙂" * 9, "' OR 1=1 --", "%s {} \\N", "\u202e\u0301"):
        assert len(index.search([query], 3, mode)[0]) <= 3


def test_eight_threads_find_what_one_finds(built: Path) -> None:
    index = load_index(built)
    queries = ["When was it lit?", "Who bakes?", "How often does it sail?", "Skerry"] * 3
    alone = [index.search([query], k=2) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: index.search([query], k=2), queries)) == alone


def test_info_describes_the_index(built: Path) -> None:
    manifest = info(built)
    assert (manifest["format_version"], manifest["version"]) == (3, 1)
    assert manifest["encoder"] == {
        "name": "minilm",
        "dimension": 384,
        "pooling": "mean",
        "normalize": True,
        "max_tokens": 256,
        "query_prefix": "",
        "passage_prefix": "",
        "fingerprint": load_encoder().fingerprint,
    }
    assert (manifest["metric"], manifest["factory"]) == ("inner_product", "Flat")
    assert (manifest["passages"], manifest["sources"]) == (3, 0)
    kinds = {name.split("/")[0] + Path(name).suffix for name in manifest["files"]}
    assert kinds >= {"vectors.faiss", "vectors.keys", "words.store", "words.term", "words.fast"}
    assert (manifest["language"], manifest["roots"]) == ("en", [])


def test_an_index_is_opened_once_until_it_is_built_again(index: Path) -> None:
    first = load_index(index)
    assert load_index(str(index)) is first
    build_from_passages(PASSAGES[:1], index, replace=True)
    again = load_index(index)
    assert again is not first
    assert (len(first), len(again)) == (3, 1)
    assert first.search(["bread"], k=1)[0][0]["title"] == "Harbour bakery"


def test_a_fault_midway_leaves_the_old_index_and_nothing_else(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(index)

    def fault(*_: object, **__: object) -> None:
        raise OSError("fault made by the test")

    for where in (
        "incoming.Incoming.put",
        "texts.WordsWriter.put",
        "change.write_segment",
        "texts.WordsWriter.commit",
        "writing.Writer.publish",
    ):
        monkeypatch.setattr(f"hopgate.retrievers.index.{where}", fault)
        with pytest.raises(OSError, match="fault made by the test"):
            build_from_passages([make_passage("New", "Something new.")], index, replace=True)
        monkeypatch.undo()
        left = files(index)
        assert {name: left[name] for name in left if not name.startswith(".work/kept-")} == before
        assert os.listdir(index.parent) == [index.name]


def test_an_encoder_that_fails_leaves_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("fault made by the test: out of memory")

    def nan(*_: object) -> np.ndarray:
        return np.full((3, 384), np.nan, dtype=np.float32)

    for encode, message in ((fault, "fault made by the test"), (nan, "NaN or infinite")):
        monkeypatch.setattr(Encoder, "encode_passages", encode)
        with pytest.raises(RuntimeError, match=message):
            build_from_passages(PASSAGES, tmp_path / "index")
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "manifest",
    ['{"name": "web app", "icons": []}', '{"format_version": 3, "encoder": "x"}', "[]", "{"],
)
def test_a_folder_with_a_manifest_of_something_else_is_never_replaced(
    tmp_path: Path, manifest: str
) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(ValueError, match="is a link or not part of an index"):
        build_from_passages(PASSAGES, tmp_path)
    assert (tmp_path / "manifest.json").read_text() == manifest


def test_an_index_with_other_files_beside_it_is_never_replaced(index: Path) -> None:
    (index / "notes.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"contains 'notes\.txt', which is a link or not part"):
        build_from_passages(PASSAGES, index)


@pytest.mark.parametrize("pattern", ["vectors/*.faiss", "words/*.store"])
def test_a_half_written_index_is_refused(index: Path, pattern: str) -> None:
    file = one_of(index, pattern)
    whole, name = file.read_bytes(), re.escape(file.name)
    file.write_bytes(whole[: len(whole) // 2])
    for read in (info, check_index, Index.open):
        with pytest.raises(ValueError, match=f"incomplete: .*/{name} has {len(whole) // 2} bytes"):
            read(index)
    file.write_bytes(whole)
    flip(file)
    for read in (check_index, Index.open):
        with pytest.raises(ValueError, match=f"{name} has changed since it was written"):
            read(index)
    file.unlink()
    with pytest.raises(ValueError, match=f"{name} is missing; build it again"):
        Index.open(index)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder": {"name": "minilm"}}, "encoder.dimension of manifest.json: Field required"),
        ({"format_version": "one"}, "format_version of manifest.json: Input should be 3"),
        ({"files": {}}, "files of manifest.json: 'vectors/1.faiss' is missing"),
        ({"passages": True}, "passages of manifest.json: Input should be a valid integer"),
        ({"passages": 4}, "its vectors and its words are not of 4 passages"),
        (
            {"files": {"../x": {"bytes": 1, "sha256": ""}}},
            "files.../x.[key] of manifest.json: String should match",
        ),
    ],
)
def test_a_manifest_of_other_types_is_damaged(
    index: Path, change: dict[str, object], message: str
) -> None:
    edit_manifest(index, lambda manifest: manifest.update(change))
    with pytest.raises(ValueError, match=f"is damaged or incomplete: .*{re.escape(message)}"):
        Index.open(index)


def test_a_good_index_is_hashed_again_only_when_it_changed(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []

    def counted(file: Path) -> str:
        hashed.append(file)
        return sha256(file)

    monkeypatch.setattr("hopgate.retrievers.index.manifest.sha256", counted)
    manifest = check_index(index)
    assert manifest == check_index(str(index)) == info(index)
    assert len(hashed) == len(manifest["files"])
    file = one_of(index, "vectors/*.faiss")
    whole = file.read_bytes()
    file.write_bytes(bytes(len(whole)))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"1\.faiss has changed"):
            check_index(index)
    assert len(hashed) == len(manifest["files"]) + 1
    file.write_bytes(whole)
    assert check_index(index) == info(index)


def test_a_newer_format_is_refused(index: Path) -> None:
    edit_manifest(index, lambda manifest: manifest.update(format_version=4))
    with pytest.raises(ValueError, match="format version 4, and this hopgate reads version 3"):
        Index.open(index)
    edit_manifest(index, lambda manifest: manifest.update(format_version=2))
    for read in (info, check_index, Index.open, verify, lambda path: delete(path, ["a"])):
        with pytest.raises(ValueError, match=r"version 2, .* 3: build it again, into a new folder"):
            read(index)


def test_a_query_is_encoded_with_the_prefix_that_the_index_was_built_with(tmp_path: Path) -> None:
    encoder = load_encoder("minilm", query_prefix="query: ", passage_prefix="passage: ")
    build_from_passages(PASSAGES, tmp_path / "index", encoder)
    described = info(tmp_path / "index")["encoder"]
    assert (described["query_prefix"], described["passage_prefix"]) == ("query: ", "passage: ")
    index = load_index(tmp_path / "index")
    ((*hits,),) = index.search(["When was it lit?"], 3, "dense")
    plain = load_encoder()
    passages = [make_passage("", f"passage: {p['title']} {p['text']}") for p in PASSAGES]
    (query,) = plain.encode_queries(["query: When was it lit?"])
    expected = plain.encode_passages(passages) @ query
    assert [hit["score"] for hit in hits] == pytest.approx(np.sort(expected)[::-1], abs=1e-5)
    assert all(type(hit["score"]) is float for hit in hits)
    assert index.encoder._model is plain._model
    with pytest.raises(ValueError, match="built with query_prefix 'query: ', and encoder minilm"):
        Index.open(tmp_path / "index", plain)
    again = build_from_passages(PASSAGES, tmp_path / "index", plain, replace=True)
    assert again.encoded == 3


def test_passages_that_are_none_are_refused(tmp_path: Path) -> None:
    wrong = PASSAGES[0] | {"id": "my-own-id-0000000001"}
    for given, message in (
        ([], "no passages given"),
        ([wrong], "the id of passage 'my-own-id-0000000001' does not match"),
    ):
        with pytest.raises(ValueError, match=message):
            build_from_passages(given, tmp_path / "index")
        assert os.listdir(tmp_path) == []


def test_another_encoder_is_refused(index: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-encoder"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ValueError, match=r"built with fingerprint .* and encoder .*other-encoder"):
        Index.open(index, encoder=str(other))
    for change, message in (
        ({"max_tokens": 128}, "built with max_tokens 128, and encoder minilm has 256"),
        ({"fingerprint": "0" * 64}, "built with fingerprint '0000"),
        ({"name": "gone"}, "unknown encoder 'gone'"),
    ):
        edit_manifest(index, lambda manifest, change=change: manifest["encoder"].update(change))
        with pytest.raises(ValueError, match=message):
            Index.open(index)
    with pytest.raises(ValueError, match="unknown encoder 'gone'"):
        check_index(index)
