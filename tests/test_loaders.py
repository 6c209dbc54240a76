"""Loaders: sections, tables, encodings, and files that mean harm."""

import json
import os
import time
import zipfile
from pathlib import Path

import pytest
from documents import WORD, paragraph, write_docx, write_pdf

from hopgate.retrievers import loaders
from hopgate.retrievers.base import Passage
from hopgate.retrievers.docx import MAX_TAGS, MAX_XML_BYTES
from hopgate.retrievers.loaders import load_documents

POLISH = (
    "Latarnia została zbudowana w 1811 roku, a jej strażnicy mieszkali na wyspie przez całą zimę, "
    "paląc ogień każdej nocy."
)


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
        "A loaf\n\nTwo crowns": ("Harbour bakery > Prices", "Prices"),
        "None on Mondays.": ("Harbour bakery > Prices > Cakes", "Prices > Cakes"),
        "By order.": (
            "Harbour bakery > Prices > Cakes > Weddings",
            "Prices > Cakes > Weddings",
        ),
        "From six to ten": ("Harbour bakery > Hours", "Hours"),
    }


def test_docx_without_a_title_is_named_by_its_properties_or_its_file(tmp_path: Path) -> None:
    (passage,) = read(write_docx(tmp_path / "notes.docx", paragraph("Some words.")))
    assert (passage["title"], passage["source"]) == ("notes", "notes.docx")
    core = '<core xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title> Ferry </dc:title></core>'
    file = write_docx(tmp_path / "named.docx", paragraph("Words."), core=core)
    assert [passage["title"] for passage in read(file)] == ["Ferry"]


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
    assert [p["text"] for p in read(file)] == ["Halfway, H2Os.\n\nOne.\n\nTwo.\n\nAs of 1811."]


def test_text_boxes_are_read_once(tmp_path: Path) -> None:
    compatible = "http://schemas.openxmlformats.org/markup-compatibility/2006"
    inner = f"<w:txbxContent>{paragraph('In the box')}</w:txbxContent>"
    box = (
        f'<w:p xmlns:mc="{compatible}" xmlns:v="urn:schemas-microsoft-com:vml"><w:r>'
        f"<w:t>Before. </w:t><mc:AlternateContent><mc:Choice>{inner}</mc:Choice><mc:Fallback>"
        f"<w:pict><v:shape><v:textbox>{inner}</v:textbox></v:shape></w:pict></mc:Fallback>"
        "</mc:AlternateContent></w:r></w:p>"
    )
    (passage,) = read(write_docx(tmp_path / "box.docx", box))
    assert passage["text"] == "Before.\n\nIn the box"


def test_docx_reads_no_images_and_no_other_files(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("hidden words")
    names = {
        "wp": "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing",
        "a": "http://schemas.openxmlformats.org/drawingml/2006/main",
        "pic": "http://schemas.openxmlformats.org/drawingml/2006/picture",
        "r": "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
    }
    spaces = " ".join(f'xmlns:{prefix}="{uri}"' for prefix, uri in names.items())
    blips = "".join(
        f"<w:drawing><wp:inline><a:graphic><a:graphicData><pic:pic><pic:blipFill><a:blip {link}/>"
        "</pic:blipFill></pic:pic></a:graphicData></a:graphic></wp:inline></w:drawing>"
        for link in ('r:embed="r1"', 'r:link="r2"')
    )
    file = write_docx(
        tmp_path / "a.docx", f"<w:p {spaces}><w:r><w:t>Words.</w:t>{blips}</w:r></w:p>"
    )
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/image"
    links = (
        f'<Relationship Id="r1" Type="{kind}" Target="media/gone.png"/>'
        f'<Relationship Id="r2" Type="{kind}" Target="{tmp_path / "secret.txt"}"'
        ' TargetMode="External"/>'
    )
    package = "http://schemas.openxmlformats.org/package/2006/relationships"
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(
            "word/_rels/document.xml.rels",
            f'<Relationships xmlns="{package}">{links}</Relationships>',
        )
        archive.writestr("mammoth/style-map", "p => script")
    assert [p["text"] for p in read(file)] == ["Words."]


def test_docx_that_is_broken_or_a_bomb_is_named_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.txt").write_text("Good words.")
    (tmp_path / "no-zip.docx").write_bytes(b"PK\x03\x04 nonsense")
    write_docx(tmp_path / "bomb.docx", document="<a>" + " " * MAX_XML_BYTES)
    write_docx(tmp_path / "parts.docx", paragraph("Words."), comments=" " * MAX_XML_BYTES)
    write_docx(tmp_path / "tags.docx", "<w:p/>" * MAX_TAGS)
    write_docx(tmp_path / "deep.docx", "<w:p>" * 50_000 + "</w:p>" * 50_000)
    entities = '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'
    write_docx(tmp_path / "entities.docx", document=entities)
    utf_16 = '<?xml version="1.0" encoding="utf-16"?>' + entities
    with zipfile.ZipFile(tmp_path / "wide.docx", "w") as archive:
        archive.writestr("word/document.xml", utf_16.encode("utf-16"))
    write_docx(tmp_path / "half.docx", document="<a><b>")
    with zipfile.ZipFile(tmp_path / "sheet.docx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<a/>")
    documents = load_documents([tmp_path])
    assert [p["text"] for p in documents.passages] == ["Good words."]
    reasons = {Path(file.path).name: file.reason for file in documents.skipped}
    assert (tmp_path / "bomb.docx").stat().st_size < 1 << 20
    assert "unpacks to over 32 MB: it may be a zip bomb" in reasons["bomb.docx"]
    assert "unpacks to over 32 MB: it may be a zip bomb" in reasons["parts.docx"]
    assert "has over 1,000,000 tags" in reasons["tags.docx"]
    assert "nested too deeply" in reasons["deep.docx"]
    assert "declares a document type" in reasons["entities.docx"]
    assert "declares a document type" in reasons["wide.docx"]
    assert "its XML is broken" in reasons["half.docx"]
    assert "not a .docx file" in reasons["no-zip.docx"]
    assert "it has no main document" in reasons["sheet.docx"]


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


def test_csv_with_a_text_column_is_read_as_passages(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(
        'Title;Text;Year\r\nWren Holm;"Kept bees; sold ""honey"".";1902\r\nNobody;;1\r\n'
    )
    (passage,) = read(tmp_path)
    assert (passage["title"], passage["text"]) == ("Wren Holm", 'Kept bees; sold "honey".')


def test_another_csv_becomes_a_passage_a_row(tmp_path: Path) -> None:
    (tmp_path / "ferries.csv").write_text("name,passengers,\nOndrith Maid,640,x\nSula,,\n\n")
    assert [(p["title"], p["text"]) for p in read(tmp_path)] == [
        ("ferries", "name: Ondrith Maid. passengers: 640. : x"),
        ("ferries", "name: Sula"),
    ]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Маяк был построен в 1811 году. Смотрители жили на острове круглый год.", "cp1251"),
        ("灯台は1811年に建てられた。守り人は島に住み、毎晩火を灯した。", "shift_jis"),
        ("灯塔建于1811年。看守人住在岛上，每晚点亮灯火。", "gb18030"),
        ("Der Leuchtturm wurde später für größere Schiffe erhöht – naïve Sätze fehlen.", "cp1252"),
        (POLISH, "cp1250"),
        ("“Naïve” pricing: five crowns.", "cp1252"),
        ("Füße", "utf-16"),
    ],
)
@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv"])
def test_encodings_are_detected(tmp_path: Path, text: str, encoding: str, kind: str) -> None:
    row = {"txt": text, "jsonl": json.dumps({"text": text}, ensure_ascii=False)}
    content = row.get(kind) or f"text\n{text}\n".replace(",", " ")
    (tmp_path / f"a.{kind}").write_bytes(content.encode(encoding))
    (passage,) = read(tmp_path)
    assert passage["text"] == (text.replace(",", " ") if kind == "csv" else text)


def test_a_broken_byte_spoils_no_other_letter(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Größere Schiffe – naïve Sätze. ".encode() * 9 + b"\xff Ende")
    (passage,) = read(tmp_path)
    assert passage["text"] == "Größere Schiffe – naïve Sätze. " * 9 + "\ufffd Ende"


def test_a_lone_surrogate_spoils_no_other_row(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "One."}\n{"text": "Two\\ud800."}\n')
    assert [p["text"] for p in read(tmp_path)] == ["One.", "Two\ufffd."]


@pytest.mark.parametrize("kind", ["txt", "md", "html", "csv", "docx", "pdf"])
def test_a_name_that_is_not_utf_8_is_escaped(tmp_path: Path, kind: str) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9." + kind.encode()))
    if kind == "docx":
        write_docx(file, paragraph("Some words."))
    elif kind == "pdf":
        write_pdf(tmp_path / "a.pdf", ["Some words."])
        (tmp_path / "a.pdf").rename(file)
    else:
        file.write_text("words\nSome words." if kind == "csv" else "Some words.")
    (passage,) = read(tmp_path)
    assert passage["source"] == f"caf\\xe9.{kind}"
    assert passage["title"] == "caf\\xe9"
    passage["source"].encode()


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(ValueError, match=r"pipe\.txt is not a regular file: give files or folders"):
        load_documents([tmp_path / "pipe.txt"])


def test_a_csv_may_have_long_cells_but_not_endless_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text(f"title,text\nLong,{'word ' * 40_000}\nShort,End.\n")
    passages = read(tmp_path)
    assert sum(len(p["text"]) for p in passages) > 190_000
    assert passages[-1]["text"] == "End."
    monkeypatch.setattr(loaders, "MAX_ROW_CHARACTERS", 1000)
    assert "line 2 is over 1000 characters long" in reason(tmp_path / "a.csv")


def test_the_mark_of_headings_is_no_heading_when_a_page_has_it(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>one \x1e two</p><h2>H \x1e</h2><p>three &#30;9 four</p>")
    assert [(p["title"], p["text"]) for p in read(tmp_path)] == [
        ("a", "one two"),
        ("a > H", "three 9 four"),
    ]


def test_headings_within_headings_are_read_in_no_time(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>Words.</p>" + "<h1><div>" * 5_000 + "deep")
    began = time.process_time()
    assert read(tmp_path)
    assert time.process_time() - began < 5


def test_a_file_of_1_gb_is_refused_unless_it_is_read_row_by_row(tmp_path: Path) -> None:
    for kind in ("txt", "md", "html", "pdf", "docx", "jsonl"):
        with (tmp_path / f"huge.{kind}").open("wb") as file:
            file.truncate(1 << 30)  # a hole: no disk is used
    for kind in ("txt", "md", "html", "pdf", "docx"):
        refused = reason(tmp_path / f"huge.{kind}")
        most = 16 if kind == "html" else 128
        assert f"it has 1024 MB, and .{kind} files are read up to {most} MB" in refused


def test_a_large_jsonl_is_read_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "MAX_FILE_BYTES", 100)
    monkeypatch.setattr(loaders, "MAX_ROW_CHARACTERS", 1000)
    rows = [json.dumps({"text": f"Row {i}."}) for i in range(500)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    assert len(read(tmp_path / "rows.jsonl")) == 500
    (tmp_path / "rows.jsonl").write_text(rows[0] + "\n" + "x" * 5000)
    assert "line 2 is over 1000 characters long" in reason(tmp_path / "rows.jsonl")


def test_links_that_lead_to_themselves_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("Good words.")
    (tmp_path / "self.txt").symlink_to(tmp_path / "self.txt")
    (tmp_path / "there").symlink_to(tmp_path / "back")
    (tmp_path / "back").symlink_to(tmp_path / "there")
    assert [p["source"] for p in read(tmp_path)] == ["good.txt"]
    with pytest.raises(ValueError, match=r"self\.txt does not exist"):
        load_documents([tmp_path / "self.txt"])


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("Good words.")
    (tmp_path / "secret.txt").write_text("Hidden words.")
    (tmp_path / "secret.txt").chmod(0)
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (skipped,) = load_documents([tmp_path]).skipped
    assert "Permission denied" in skipped.reason
