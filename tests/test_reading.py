"""Reading files: sections, tables, encodings, and hostile files."""

import json
import os
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import WORD, paragraph, write_docx, write_epub, write_pdf

from hopgate.retrievers.base import Passage
from hopgate.retrievers.documents import apart, cutting, parsers, reading, rows
from hopgate.retrievers.documents.apart import Parser
from hopgate.retrievers.documents.cutting import CODE
from hopgate.retrievers.documents.finding import (
    DOCUMENTS,
    PARSED,
    ROWS,
    TEXTS,
    IgnoredFiles,
    Stamp,
    find_files,
    ignored_summary,
)
from hopgate.retrievers.documents.reading import Documents, ReadReport, load_documents, read_files
from hopgate.retrievers.documents.zipped import MAX_XML_BYTES

POLISH = (
    "Latarnia została zbudowana w 1811 roku, a jej strażnicy mieszkali na wyspie przez całą zimę, "
    "paląc ogień każdej nocy."
)


class SharedParser(Parser):
    def close(self) -> None:
        """Go on for the next test."""


@pytest.fixture(scope="module", autouse=True)
def shared_process() -> Iterator[None]:
    """One process parses the documents of all tests."""
    shared = SharedParser()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "Parser", lambda: shared)
        yield
    Parser.close(shared)


def read(path: Path) -> list[Passage]:
    return load_documents([path]).passages


def reason(path: Path) -> str:
    with pytest.raises(ValueError, match="no passage could be read") as refused:
        load_documents([path])
    return str(refused.value)


def test_docx_keeps_title_headings_and_tables(tmp_path: Path) -> None:
    cells = (f"<w:tc>{paragraph(text)}</w:tc>" for text in ("A loaf", "Two crowns"))
    file = write_docx(
        tmp_path / "bakery.docx",
        paragraph("Harbour bakery", "Titel"),
        paragraph("Bread is baked &amp; sold before dawn."),
        paragraph("Prices", "berschrift1"),
        f"<w:tbl><w:tr>{''.join(cells)}</w:tr></w:tbl>",
        paragraph("Cakes", "berschrift2"),
        paragraph("None on Mondays."),
        paragraph("Weddings", "Heading7"),
        paragraph("By order."),
        paragraph("Hours", "Heading1"),
        "<w:p><w:r><w:t>From six</w:t><w:br/><w:t>to</w:t><w:tab/><w:t>ten</w:t></w:r></w:p>",
    )
    found = {p["text"]: (p["title"], p.get("section")) for p in read(file)}
    assert found == {
        "Bread is baked & sold before dawn.": ("Harbour bakery", None),
        "| A loaf | Two crowns |\n| --- | --- |": ("Harbour bakery > Prices", "Prices"),
        "None on Mondays.": ("Harbour bakery > Prices > Cakes", "Prices > Cakes"),
        "By order.": ("Harbour bakery > Prices > Cakes > Weddings", "Prices > Cakes > Weddings"),
        "From six to ten": ("Harbour bakery > Hours", "Hours"),
    }


def test_docx_keeps_words_whole_and_reads_lists_and_footnotes(tmp_path: Path) -> None:
    relationships = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    runs = (
        "<w:p><w:r><w:t>Half</w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>way, H</w:t></w:r><w:r>"
        '<w:rPr><w:vertAlign w:val="subscript"/></w:rPr><w:t>2</w:t></w:r><w:r><w:t>O</w:t></w:r>'
        f'<w:hyperlink xmlns:r="{relationships}" w:anchor="b"><w:r><w:t>s.</w:t></w:r>'
        "</w:hyperlink>"
        '<w:r><w:footnoteReference w:id="1"/></w:r></w:p>'
    )
    item = '<w:p><w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr></w:pPr>'
    items = [f"{item}<w:r><w:t>{text}</w:t></w:r></w:p>" for text in ("One.", "Two.")]
    notes = (
        f'<w:footnotes xmlns:w="{WORD}"><w:footnote w:id="1">{paragraph("As of 1811.")}'
        "</w:footnote></w:footnotes>"
    )
    deleted = "<w:p><w:del><w:r><w:delText>Gone.</w:delText></w:r></w:del></w:p>"
    file = write_docx(tmp_path / "a.docx", runs, *items, deleted, footnotes=notes)
    assert [p["text"] for p in read(file)] == ["Halfway, H2Os.\n\nOne.\n\nTwo.\n\n1. As of 1811."]


def test_docx_reads_no_images_and_no_other_files(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("hidden words")
    schemas = "http://schemas.openxmlformats.org"
    spaces = (
        f'xmlns:wp="{schemas}/drawingml/2006/wordprocessingDrawing" '
        f'xmlns:a="{schemas}/drawingml/2006/main" xmlns:pic="{schemas}/drawingml/2006/picture" '
        f'xmlns:r="{schemas}/officeDocument/2006/relationships"'
    )
    blips = "".join(
        f"<w:drawing><wp:inline><a:graphic><a:graphicData><pic:pic><pic:blipFill><a:blip {link}/>"
        "</pic:blipFill></pic:pic></a:graphicData></a:graphic></wp:inline></w:drawing>"
        for link in ('r:embed="r1"', 'r:link="r2"')
    )
    words = f"<w:p {spaces}><w:r><w:t>Words.</w:t>{blips}</w:r></w:p>"
    kind = f'Type="{schemas}/officeDocument/2006/relationships/image"'
    secret = f'Target="{tmp_path / "secret.txt"}" TargetMode="External"'
    links = f'<Relationship Id="r1" {kind} Target="media/gone.png"/>'
    links += f'<Relationship Id="r2" {kind} {secret}/>'
    file = write_docx(tmp_path / "a.docx", words)
    with zipfile.ZipFile(file, "a") as archive:
        package = f'<Relationships xmlns="{schemas}/package/2006/relationships">'
        archive.writestr("word/_rels/document.xml.rels", f"{package}{links}</Relationships>")
        archive.writestr("mammoth/style-map", "p => script")
    assert [p["text"] for p in read(file)] == ["Words."]


def test_html_and_markdown_keep_their_sections(tmp_path: Path) -> None:
    (tmp_path / "mill.html").write_text(
        "<title>Tidal mill</title><h1>Tidal mill</h1><p>It <b>grinds</b>, always.</p>"
        "<h2>Wheel</h2><p>It turns.</p><h3>Wood</h3><p>Oak.</p><h2>Miller</h2><p>Bo Rask.</p>"
    )
    (tmp_path / "mill.md").write_text("# Mill\n\nGrinds.\n\n## Wheel\n\n### Wood\n\nElm.\n")
    found = {p["text"]: (p["title"], p.get("section")) for p in read(tmp_path)}
    assert found == {
        "It grinds, always.": ("Tidal mill", None),
        "It turns.": ("Tidal mill > Wheel", "Wheel"),
        "Oak.": ("Tidal mill > Wheel > Wood", "Wheel > Wood"),
        "Bo Rask.": ("Tidal mill > Miller", "Miller"),
        "Grinds.": ("Mill", None),
        "Elm.": ("Mill > Wheel > Wood", "Wheel > Wood"),
    }


@pytest.mark.parametrize(
    ("content", "passages"),
    [
        (
            'Title;Text;Year\r\nWren Holm;"Kept bees; sold ""honey"".";1902\r\nNobody;;1\r\n',
            [("Wren Holm", 'Kept bees; sold "honey".')],
        ),
        (
            "name,passengers,\nOndrith Maid,640,x\nSula,,\n\n",
            [("a", "name: Ondrith Maid. passengers: 640. : x"), ("a", "name: Sula")],
        ),
    ],
)
def test_csv_is_read_by_its_text_column_or_row_by_row(
    tmp_path: Path, content: str, passages: list[tuple[str, str]]
) -> None:
    (tmp_path / "a.csv").write_text(content)
    assert [(p["title"], p["text"]) for p in read(tmp_path)] == passages


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Маяк был построен в 1811 году. Смотрители жили на острове круглый год.", "cp1251"),
        ("灯台は1811年に建てられた。守り人は島に住み、毎晩火を灯した。", "shift_jis"),
        ("灯塔建于1811年。看守人住在岛上，每晚点亮灯火。", "gb18030"),
        ("Der Leuchtturm wurde später für größere Schiffe erhöht – naïve Sätze fehlen.", "cp1252"),
        (POLISH, "cp1250"),
        ("“Naïve” pricing: five crowns.", "cp1252"),
        ("Größere Schiffe – naïve Sätze. " * 9 + "\udcff Ende", "utf-8"),  # a broken byte
        ("Füße", "utf-16"),
    ],
)
@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv"])
def test_encodings_are_detected(tmp_path: Path, text: str, encoding: str, kind: str) -> None:
    row = {"txt": text, "jsonl": json.dumps({"text": text}, ensure_ascii=False)}
    content = row.get(kind) or f"text\n{text}\n".replace(",", " ")
    (tmp_path / f"a.{kind}").write_bytes(content.encode(encoding, "surrogateescape"))
    (passage,) = read(tmp_path)
    wanted = text.replace("\udcff", "\ufffd")
    assert passage["text"] == (wanted.replace(",", " ") if kind == "csv" else wanted)


# Pages


def test_what_pages_have_around_their_text_is_left_out(tmp_path: Path) -> None:
    for number, name in enumerate(("mill", "quay", "ferry", "bakery")):
        (tmp_path / f"{name}.html").write_text(
            f"<title>{name.title()}</title><body><nav><p>Skip to content</p></nav>"
            "<header><p>Harbour site</p></header><div id=top><p>Home | Map | Prices</p></div>"
            f"<article><h1>{name.title()}<a class=headerlink href=#x>¶</a></h1>"
            f"<header><p>By Bo Rask, {1900 + number}.</p></header><p>It has {number} doors.</p>"
            f"<pre>turn({number})\n\nx\n\n</pre>"
            f'<h2>Rules <a href="#r">#</a></h2><p>Close the {name}.</p><aside>Related: Wren</aside>'
            "</article><div role=search><p>Find</p></div><div><p>Updated daily<br>by hand</p></div>"
            "<footer><p>Terms of use</p></footer></body>"
        )
    found = {(p["source"], p["title"]): p["text"] for p in read(tmp_path)}
    assert found["mill.html", "Mill"] == "By Bo Rask, 1900.\n\nIt has 0 doors.\n\nturn(0)\n\nx"
    assert found["mill.html", "Mill > Rules"] == "Close the mill."
    assert len(found) == 8
    one = tmp_path / "one"  # its site is not known
    one.mkdir()
    (tmp_path / "mill.html").rename(one / "mill.html")
    alone = "\n\n".join(p["text"] for p in read(one))
    assert "Home | Map" in alone
    assert "Terms of use" not in alone


def test_pages_that_have_a_folder_each_are_of_one_site(tmp_path: Path) -> None:
    for name in ("mill", "quay", "ferry"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(f"<p>Home | Map</p><p>The {name} is old.</p>")
    assert [p["text"] for p in read(tmp_path)] == [
        f"The {name} is old." for name in ("ferry", "mill", "quay")
    ]


def test_a_page_of_source_code_is_marked(tmp_path: Path) -> None:
    code = "\n\n".join(f"def turn_{i}(times):\n    return times * {i}" for i in range(60))
    (tmp_path / "a.html").write_text(f"<h1>Source code for mill</h1><pre>{code}</pre>")
    (tmp_path / "b.html").write_text(f"<p>{'It turns. ' * 99}</p><pre>{code[:500]}</pre>")
    (tmp_path / "c.py").write_text(code)
    kinds = {(p["source"], p.get("metadata", {}).get("kind")) for p in read(tmp_path)}
    assert kinds == {("a.html", "code"), ("b.html", None), ("c.py", "code")}
    assert "def turn_1(times):\n    return times * 1" in read(tmp_path / "a.html")[0]["text"]


@pytest.mark.parametrize("kind", ["md", "rst"])
def test_each_piece_of_a_long_table_has_its_header(tmp_path: Path, kind: str) -> None:
    cells = [(f"loaf {i}", f"{i} crowns and some more words") for i in range(60)]
    table = {
        "md": "Prices.\n\n| Bread | Price |\n| --- | --- |\n"
        + "".join(f"| {a} | {b} |\n" for a, b in cells),
        "rst": "Prices.\n\n.. list-table::\n   :header-rows: 1\n\n"
        + "".join(f"   * - {a}\n     - {b}\n" for a, b in (("Bread", "Price"), *cells)),
    }
    (tmp_path / f"a.{kind}").write_text(table[kind])
    first, *pieces = [p["text"] for p in read(tmp_path)]
    assert first == "Prices."
    assert len(pieces) > 3
    assert all(each.startswith("| Bread | Price |\n| --- | --- |\n| loaf ") for each in pieces)
    assert sum(piece.count("| loaf ") for piece in pieces) == len(cells)


def test_a_short_table_stays_with_the_text_above(tmp_path: Path) -> None:
    rows = "".join(f"| {i} | {'x' * 30} |\n" for i in range(9))
    text = "Words of the bakery. " * 12
    (tmp_path / "a.md").write_text(f"{text}\n\nPrices:\n\n| N | X |\n| - | - |\n{rows}\nThe end.")
    (holding,) = [p["text"] for p in read(tmp_path) if "|" in p["text"]]
    assert holding.count("\n| ") + 1 >= 11 and "Prices:" in holding


def test_restructured_text_is_known_by_its_content(tmp_path: Path) -> None:
    markup = "=====\nMills\n=====\n\n.. _wheel:\n\nWheel\n=====\n\nSee :doc:`quay`.\n"
    (tmp_path / "a.txt").write_text(markup)
    (tmp_path / "b.txt").write_text("Mills\n=====\n\nPlain words: a mill. C::D\n")
    found = {p["source"]: (p["title"], p["text"]) for p in read(tmp_path)}
    assert found == {
        "a.txt": ("Mills > Wheel", "See quay."),
        "b.txt": ("b", "Mills =====\n\nPlain words: a mill. C::D"),
    }


def test_code_in_markdown_keeps_its_lines_and_holds_no_headings(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# Mill #\n\nTurn\nit:\n\n```sh\n# not a heading\nif x; then\n    turn\nfi\n```\n\n"
        "#### C#\nEnd."
    )
    assert [(p["title"], p["text"]) for p in read(tmp_path)] == [
        ("Mill", "Turn it:\n\n# not a heading\nif x; then\n    turn\nfi"),
        ("Mill > C#", "End."),
    ]


def test_files_that_generators_write_for_themselves_are_counted(tmp_path: Path) -> None:
    (tmp_path / "_static").mkdir()
    for name in (
        "searchindex.js", "search/search_index.js", "jquery.min.js", "app.js.map", "genindex.html",
        "package-lock.json", "poetry.lock", "_static/theme.js", "member-search-index.js",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("words")
    (tmp_path / "bundle.js").write_text("a()," * 5_000)
    kept = ("search.html", "search_index.md", "main.js", "lock.txt", "sitemap.md")
    for name in kept:
        (tmp_path / name).write_text("Good words.")
    documents = load_documents([tmp_path])
    assert {p["source"] for p in documents.passages} == set(kept)
    assert {each.suffix: each.files for each in documents.ignored} == {
        "search index": 3, "minified": 2, "lock file": 2, "index page": 1, "page script": 1,
        "source map": 1,
    }  # fmt: skip
    assert read(tmp_path / "searchindex.js")  # named by its user


@pytest.mark.parametrize("kind", ["md", "html"])
def test_a_name_that_is_not_utf_8_is_escaped(tmp_path: Path, kind: str) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9." + kind.encode()))
    file.write_text("Some words.")
    (passage,) = read(tmp_path)
    assert (passage["source"], passage["title"]) == (f"caf\\xe9.{kind}", "caf\\xe9")


def test_a_file_of_1_gb_is_refused_unless_it_is_read_row_by_row(tmp_path: Path) -> None:
    large = ("txt", "md", "org", "py", "html", "rst", "pdf", "docx", "epub")
    for kind in (*large, "jsonl"):
        with (tmp_path / f"huge.{kind}").open("wb") as file:
            file.truncate(1 << 30)  # a hole: no disk is used
    for kind in large:
        refused = reason(tmp_path / f"huge.{kind}")
        most = 16 if kind in ("html", "rst") else 128
        assert f"it has 1024 MB, and .{kind} files are read up to {most} MB" in refused


def skipped_in(documents: Documents) -> dict[str, str]:
    return {Path(file.path).name: file.reason for file in documents.skipped}


# What is not read


def test_files_of_other_kinds_are_counted_with_an_example(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("Good words.")
    (tmp_path / "pictures").mkdir()
    for name in ("pictures/a.png", "pictures/b.PNG", "data.bin", "LICENSE", ".hidden.bin"):
        (tmp_path / name).write_bytes(b"\x00")
    documents = load_documents([tmp_path])
    assert documents.ignored == [
        IgnoredFiles(".png", 2, "pictures/a.png"),
        IgnoredFiles("", 1, "LICENSE"),
        IgnoredFiles(".bin", 1, "data.bin"),
    ]
    assert ignored_summary(documents.ignored) == (
        "4 files skipped by type: .png 2, no suffix 1, .bin 1 (for example pictures/a.png)"
    )
    assert documents.skipped == []
    assert ignored_summary([]) == ""


def test_links_that_lead_out_of_a_folder_are_not_followed(tmp_path: Path) -> None:
    top, outside = tmp_path / "top", tmp_path / "outside"
    for folder in (top / "real", outside):
        folder.mkdir(parents=True)
        (folder / "words.txt").write_text(f"Words in {folder.name}.")
    (top / "out").symlink_to(outside)
    (top / "out.txt").symlink_to(outside / "words.txt")
    (top / "in").symlink_to(top / "real")
    (top / "a").mkdir()
    (top / "a" / "in").symlink_to(top / "real")
    (top / "in.txt").symlink_to(top / "real" / "words.txt")
    (top / "self.txt").symlink_to(top / "self.txt")
    (top / "there").symlink_to(top / "back")
    (top / "back").symlink_to(top / "there")
    (top / ".store").mkdir()
    (top / ".store" / "notes.txt").write_text("Words in a store.")
    (top / "notes.txt").symlink_to(top / ".store" / "notes.txt")  # as Kubernetes mounts files
    (tmp_path / "link").symlink_to(top)
    for given in (top, tmp_path / "link"):
        documents = load_documents([given])
        assert {p["source"]: p["text"] for p in documents.passages} == {
            "real/words.txt": "Words in real.",
            "notes.txt": "Words in a store.",
        }
        reason = f"it is a link that leads out of {given}"
        assert skipped_in(documents) == {"out": reason, "out.txt": reason}


def test_pipes_and_sockets_in_a_folder_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("Good words.")
    os.mkfifo(tmp_path / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "socket.txt"))
        found = find_files([tmp_path])
    assert {Path(file.path).name for file in found.skipped} == {"pipe.txt", "socket.txt"}
    assert {file.reason for file in found.skipped} == {"it is not a regular file"}
    (tmp_path / "good.txt").unlink()
    os.mkfifo(tmp_path / "good.txt")
    (file,) = read_files(found, ReadReport())
    assert file.skipped is not None
    assert file.skipped.reason == "it is not a regular file"


# Rows


def test_a_bad_line_costs_only_that_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        '{"text": "One."}\n{"text": 5}\nnonsense\n{"text": "Two."}' + "\n[]" * 50
    )
    documents = load_documents([tmp_path])
    assert [p["text"] for p in documents.passages] == ["One.", "Two."]
    assert documents.files == 1
    assert [file.reason for file in documents.skipped] == [
        "text is 5; it must be a string",
        "not JSON (Expecting value at column 1)",
        *["not a JSON object"] * (rows.MAX_BAD_ROWS - 2),
        "42 more rows cannot be read",
    ]
    assert documents.skipped[1].path == f"{tmp_path / 'rows.jsonl'}:3"


# Other kinds


def test_restructured_text_keeps_its_sections_and_inserts_no_files(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("hidden words")
    secret = tmp_path / "secret.txt"
    (tmp_path / "mill.rst").write_text(
        "Tidal mill\n==========\n\n.. contents::\n\n.. toctree::\n   :maxdepth: 2\n\n   wheel\n\n"
        ".. a comment\n\nIt grinds *barley*,\nsee :ref:`the wheel <wheel>` and :func:`turn`.\n\n"
        "Wheel\n-----\n\nIt turns::\n\n    turn(\n      1)\n\n"
        ".. list-table:: Prices\n\n   * - A loaf\n\n.. versionadded:: 1811\n   By the sea.\n\n"
        ".. py:function:: turn(times)\n   :noindex:\n\n   Turn the wheel.\n\n"
        f".. include:: {secret}\n\n.. raw:: html\n   :file: {secret}\n\n"
        f".. csv-table:: Turns\n   :file: {secret}\n\n.. literalinclude:: {secret}\n"
    )
    found = {p["title"]: p for p in load_documents([tmp_path / "mill.rst"]).passages}
    assert list(found) == ["Tidal mill", "Tidal mill > Wheel"]
    assert found["Tidal mill"]["text"] == "It grinds barley, see the wheel and turn."
    wheel = found["Tidal mill > Wheel"]
    assert wheel["section"] == "Wheel"
    assert wheel["text"].startswith(
        "It turns:\n\nturn(\n  1)\n\n*Prices*\n\n| A loaf |\n| --- |\n\n"
        "1811 By the sea.\n\nturn(times)\n\nTurn the wheel."
    )
    assert "hidden words" not in wheel["text"]


def test_epub_is_read_in_the_order_of_its_spine(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    chapters = (
        "<h1>The quay</h1><p>Red <i>granite</i>.</p>",
        "<p>It is wide.</p><h1>The mill</h1><h2>Wheel</h2><p>It turns &amp; turns.</p>",
    )
    write_epub(tmp_path / "a" / "book.epub", *chapters, title="Harbour")
    found = [(p["title"], p.get("section"), p["text"]) for p in read(tmp_path)]
    assert found == [
        ("Harbour > The quay", "The quay", "Red granite.\n\nIt is wide."),
        ("Harbour > The mill > Wheel", "The mill > Wheel", "It turns & turns."),
    ]


def test_source_code_keeps_its_lines(tmp_path: Path) -> None:
    functions = [f"def turn_{i}(times):\n    # {'wheel ' * 9}\n    return {i}" for i in range(30)]
    (tmp_path / "mill.py").write_text("\n\n\n".join(functions))
    passages = read(tmp_path)
    assert {p["title"] for p in passages} == {"mill.py"}
    text = "\n".join(p["text"] for p in passages)
    assert all(function in text for function in functions)
    assert all(p["text"].startswith("def turn_") for p in passages)


def test_every_kind_of_source_code_is_read(tmp_path: Path) -> None:
    for suffix in CODE:
        (tmp_path / f"a{suffix}").write_text("turn ....... 17\n")
    documents = load_documents([tmp_path])
    assert documents.skipped == []
    assert {p["title"] for p in documents.passages} == {f"a{suffix}" for suffix in CODE}
    assert {p["text"] for p in documents.passages} == {"turn ....... 17"}


# Tables of contents


def test_lines_of_a_table_of_contents_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        "The mill stands by the sea.\nChapter 2 ........ 17\nIt grinds ... 17 kinds.\n\n"
        "This book ....... 3\nPreface . . . . . . . . . iv\n第一章…………………3\n\n"
        "Wait....\n\n他走了……"
    )
    (passage,) = read(tmp_path / "a.txt")
    wanted = "The mill stands by the sea. It grinds ... 17 kinds.\n\nWait....\n\n他走了……"
    assert passage["text"] == wanted
    contents = "Contents\n" + "\n".join(f"Chapter {i} ........ {i * 7}" for i in range(9))
    write_pdf(tmp_path / "a.pdf", [contents, "The mill stands by the sea."])
    (passage,) = read(tmp_path / "a.pdf")
    assert (passage["page"], passage["text"]) == (2, "The mill stands by the sea.")
    style = (
        f'<w:styles xmlns:w="{WORD}"><w:style w:type="paragraph" w:styleId="Verzeichnis1">'
        '<w:name w:val="toc 1"/></w:style></w:styles>'
    )
    entry = paragraph("Wheel 17", "Verzeichnis1")
    write_docx(tmp_path / "a.docx", entry, paragraph("It turns."), styles=style)
    assert [p["text"] for p in read(tmp_path / "a.docx")] == ["It turns."]


# Streaming


def test_files_are_read_one_by_one_with_their_stamps(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "One."}\n{"text": "Two."}\nbad\n')
    (tmp_path / "b.txt").write_text(" ")
    (tmp_path / "c.html").write_text("<p>Three.</p>")
    report, seen = ReadReport(), []
    files = read_files(find_files([tmp_path]), report, lambda *step: seen.append(step))
    assert seen == []
    first = next(files)
    assert (seen, report.files, report.skipped) == ([(0, 3)], 1, [])
    status = (tmp_path / "a.jsonl").stat()
    assert first.stamp == Stamp(status.st_size, status.st_mtime_ns)
    assert [p["text"] for p in first.passages] == ["One.", "Two."]
    assert [file.path for file in report.skipped] == [f"{tmp_path / 'a.jsonl'}:3"]
    rest = [(file.source, [p["text"] for p in file.passages], file.skipped) for file in files]
    assert rest == [("b.txt", [], report.skipped[1]), ("c.html", ["Three."], None)]
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert report.files == 2
    report.check()


def test_a_file_that_is_gone_when_it_is_read_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Words.")
    found, report = find_files([tmp_path]), ReadReport()
    (tmp_path / "a.txt").unlink()
    (file,) = read_files(found, report)
    assert file.stamp is None
    with pytest.raises(ValueError, match=r"no passage could be read \(.*a\.txt: .*No such file"):
        report.check()


# Limits


def test_files_that_take_too_long_are_skipped_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "Parser", Parser)
    monkeypatch.setattr(apart, "MAX_SECONDS", 3.0)
    (tmp_path / "a.rst").write_text("\n".join("=" * 9 + " " + "=" * 9 for _ in range(40_000)))
    (tmp_path / "b.html").write_text("<p>Good words.</p>")
    documents = load_documents([tmp_path])
    assert [p["text"] for p in documents.passages] == ["Good words."]
    assert skipped_in(documents) == {"a.rst": "it took over 3 s to read: convert it to .txt"}


def test_a_file_that_takes_too_much_memory_costs_only_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "Parser", Parser)
    monkeypatch.setattr(apart, "MAX_MEMORY_BYTES", 160 << 20)
    (tmp_path / "a.html").write_text("😀" + "words " * 2_500_000)  # 4 bytes a letter in memory
    (tmp_path / "b.html").write_text("<p>Good words.</p>")
    documents = load_documents([tmp_path])
    assert [p["text"] for p in documents.passages] == ["Good words."]
    assert "it takes too much memory to read" in skipped_in(documents)["a.html"]


def test_a_file_that_crashes_its_parser_costs_only_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "Parser", Parser)
    (tmp_path / "pypdf.py").write_text("import os; os.abort()")  # stands for a fault in a parser
    monkeypatch.syspath_prepend(tmp_path)
    write_pdf(tmp_path / "a.pdf", ["Words."])
    (tmp_path / "b.html").write_text("<p>Good words.</p>")
    documents = load_documents([tmp_path / "a.pdf", tmp_path / "b.html"])
    assert [p["text"] for p in documents.passages] == ["Good words."]
    assert "the process that read it crashed" in skipped_in(documents)["a.pdf"]


def test_the_process_imports_nothing_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "html_to_markdown.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "a.html").write_text("<p>Words.</p>")
    monkeypatch.setattr(reading, "Parser", Parser)
    monkeypatch.chdir(tmp_path)
    assert [p["text"] for p in read(tmp_path / "a.html")] == ["Words."]
    assert not (tmp_path / "ran").exists()


# Languages


def test_chinese_is_cut_at_its_sentences_into_shorter_passages(tmp_path: Path) -> None:
    sentences = [f"第{i}块石头在港口的红色花岗岩码头上，守夜人每晚都点亮灯火！" for i in range(60)]
    (tmp_path / "a.txt").write_text("".join(sentences), encoding="utf-8")
    texts = [p["text"] for p in read(tmp_path)]
    assert all(len(text) <= cutting.DENSE_CHUNK_CHARACTERS for text in texts)
    assert all(text.endswith("！") and text.startswith("第") for text in texts)
    assert all(any(sentence in text for text in texts) for sentence in sentences)


def test_wrapped_lines_of_chinese_and_thai_are_joined_without_a_space(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        "灯塔建于\n1811年。看守人\n住在岛上。\n\n每晚\nYes.", encoding="utf-8"
    )
    (tmp_path / "b.txt").write_text("ประภาคารสร้าง\nขึ้นในปี\nA b", encoding="utf-8")
    assert [p["text"] for p in read(tmp_path)] == [
        "灯塔建于 1811年。看守人住在岛上。\n\n每晚 Yes.",
        "ประภาคารสร้างขึ้นในปี A b",
    ]


@pytest.mark.parametrize(("kind", "module"), [("rst", "docutils"), ("epub", "html_to_markdown")])
def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, module: str
) -> None:
    monkeypatch.setattr(reading, "Parser", Parser)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError(name={module!r})")
    write_epub(tmp_path / "a.epub", "Words.", title="A")
    (tmp_path / "a.rst").write_text("Words.")
    wanted = rf"reading \.{kind} needs {module}: pip install 'hopgate\[documents\]'"
    with pytest.raises(RuntimeError, match=wanted):
        load_documents([tmp_path / f"a.{kind}"])


def test_every_kind_has_a_reader() -> None:
    assert set(TEXTS) == set(reading._TEXTS)
    assert set(ROWS) == set(rows.ROWS)
    assert set(PARSED) == set(parsers.PARSERS)
    assert not set(DOCUMENTS) & set(CODE)


# Long rows and open quotation marks


@pytest.mark.parametrize(
    ("kind", "content", "reason"),
    [
        ("csv", "text\nOne.\n" + "x" * 2000 + "\nTwo.\n", "line 3 is over 1000 characters"),
        ("jsonl", '{"text": "One."}\n' + "x" * 2000, "line 2 is over 1000 characters long"),
        ("csv", 'text\nOne.\n"Two.\nThree.\n', "its quotation mark is never closed"),
    ],
)
def test_a_row_without_an_end_ends_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, content: str, reason: str
) -> None:
    monkeypatch.setattr(rows, "MAX_ROW_CHARACTERS", 1000)
    monkeypatch.setattr(reading, "MAX_FILE_BYTES", 10)  # does not count for rows
    (tmp_path / f"a.{kind}").write_text(content)
    documents = load_documents([tmp_path])
    assert [p["text"] for p in documents.passages] == ["One."]
    (skipped,) = documents.skipped
    assert reason in skipped.reason


# Hostile archives

CONTAINER = "META-INF/container.xml"
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
LAUGHS = f'<!DOCTYPE a [<!ENTITY l0 "ha">{LAUGHS}]><a>&l9;</a>'
DEEP = f'<w:document xmlns:w="{WORD}"><w:body>{"<w:p>" * 50_000}{"</w:p>" * 50_000}' + (
    "</w:body></w:document>"
)
BOMB = "unpacks to over 32 MB: it may be a zip bomb"


@pytest.mark.parametrize(
    ("kind", "parts", "reason"),
    [
        ("docx", {"comments": " " * MAX_XML_BYTES}, BOMB),
        ("docx", {"document": DEEP}, "recursion"),
        ("docx", {"document": LAUGHS}, "amplification"),
        ("docx", {"document": "<a><b>"}, "it cannot be read as .docx: no element found"),
        ("docx", None, "it cannot be read as .docx: File is not a zip file"),
        ("epub", {CONTAINER: LAUGHS}, "amplification"),
        ("epub", {"a.xhtml": " " * MAX_XML_BYTES}, BOMB),
        ("epub", {"OEBPS/book.opf": "<package>"}, "it cannot be read as .epub: no element found"),
        ("epub", {"OEBPS/text/c 0.xhtml": "\x01\x02" * 99}, "its chapters are encrypted"),
        ("epub", {CONTAINER: "<a/>"}, "it cannot be read as .epub"),
    ],
)
def test_an_archive_that_is_broken_or_a_bomb_is_refused(
    tmp_path: Path, kind: str, parts: dict[str, Any] | None, reason: str
) -> None:
    file = tmp_path / f"a.{kind}"
    if parts is None:
        file.write_bytes(b"PK\x03\x04 nonsense")
    elif kind == "docx":
        write_docx(file, paragraph("Words."), **parts)
    else:
        write_epub(file, "Words.", **parts)
    (tmp_path / "good.txt").write_text("Good words.")
    documents = load_documents([tmp_path])
    assert [p["text"] for p in documents.passages] == ["Good words."]
    assert reason in skipped_in(documents)[f"a.{kind}"]
