"""Small documents for tests of loaders and indexes."""

import zipfile
from pathlib import Path

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STYLES = (
    f'<w:styles xmlns:w="{WORD}">'
    '<w:style w:type="paragraph" w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="berschrift2"><w:name w:val="heading 2"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Titel"><w:name w:val="Title"/></w:style></w:styles>'
)


def write_pdf(path: Path, pages: list[str]) -> None:
    """Write a PDF of one or more lines a page."""
    from reportlab.pdfgen.canvas import Canvas

    canvas = Canvas(str(path))
    for page in pages:
        for number, line in enumerate(page.splitlines()):
            canvas.drawString(72, 720 - 15 * number, line)
        canvas.showPage()
    canvas.save()


def paragraph(text: str, style: str = "") -> str:
    """A paragraph of a .docx file."""
    named = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{named}<w:r><w:t>{text}</w:t></w:r></w:p>"


def write_docx(path: Path, *paragraphs: str, **parts: str | bytes) -> Path:
    """Write a .docx file; `document` replaces its whole text, other parts are added."""
    body = f'<w:document xmlns:w="{WORD}"><w:body>{"".join(paragraphs)}</w:body></w:document>'
    contents = {"document": body, "styles": STYLES} | parts
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            folder = "docProps" if name == "core" else "word"
            archive.writestr(f"{folder}/{name}.xml", content)
    return path


def write_epub(path: Path, *chapters: str, title: str = "", **parts: str) -> Path:
    """Write an .epub file of chapters in XHTML, stored in reverse order; other parts are added."""
    items = "".join(
        f'<item id="c{i}" href="text/c%20{i}.xhtml" media-type="application/xhtml+xml"/>'
        for i in range(len(chapters))
    )
    items += '<item id="nav" href="nav.xhtml" properties="nav"/>'
    ids = ["nav", *(f"c{number}" for number in range(len(chapters)))]
    spine = "".join(f'<itemref idref="{name}"/>' for name in ids)
    contents = {
        "META-INF/container.xml": "<container "
        'xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
        "OEBPS/book.opf": '<package xmlns="http://www.idpf.org/2007/opf" '
        f'xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata><dc:title>{title}</dc:title>'
        f"</metadata><manifest>{items}</manifest><spine>{spine}</spine></package>",
        "OEBPS/nav.xhtml": "<p>Contents of the book</p>",
    }
    for number, chapter in reversed(list(enumerate(chapters))):
        contents[f"OEBPS/text/c {number}.xhtml"] = (
            f"<!DOCTYPE html><html><head><title>x</title></head><body>{chapter}</body></html>"
        )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (contents | parts).items():
            archive.writestr(name, content)
    return path
