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
    from reportlab.pdfgen.canvas import Canvas

    canvas = Canvas(str(path))
    for page in pages:
        canvas.drawString(72, 720, page)
        canvas.showPage()
    canvas.save()


def paragraph(text: str, style: str = "") -> str:
    """A paragraph of a .docx file."""
    named = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{named}<w:r><w:t>{text}</w:t></w:r></w:p>"


def write_docx(path: Path, *paragraphs: str, **parts: str) -> Path:
    """Write a .docx file; `document` replaces its whole text, other parts are added."""
    body = f'<w:document xmlns:w="{WORD}"><w:body>{"".join(paragraphs)}</w:body></w:document>'
    contents = {"document": body, "styles": STYLES} | parts
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            folder = "docProps" if name == "core" else "word"
            archive.writestr(f"{folder}/{name}.xml", content)
    return path
