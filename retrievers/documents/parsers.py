"""The parsers of .html, .pdf, .docx, .epub and .rst files; `apart` runs them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Set
from contextlib import suppress
from functools import cache
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hopgate.common.errors import reason
from hopgate.retrievers.documents.cutting import Section
from hopgate.retrievers.documents.markdown import (
    CODE,
    PROSE,
    blocks,
    parts,
    sections,
    stem,
    without_blocks,
)
from hopgate.retrievers.documents.plaintext import is_contents, read_text, unwrap, without_contents

if TYPE_CHECKING:
    from html_to_markdown import ConversionOptions

MAX_TEXT_CHARACTERS = 128 << 20
"""Longest text of one file."""
MIN_PAGES = 3
"""Least number of pages with a block that counts as repeated."""
_AROUND = [
    "nav", "footer", "aside", "dialog",
    "[role=navigation]", "[role=search]", "[role=banner]", "[role=contentinfo]",
    "[role=complementary]", "[aria-hidden=true]", "a.headerlink", ".mw-editsection",
]  # fmt: skip
"""What pages have around their texts, besides what the converter leaves out itself: menus, forms,
headers outside articles."""
_FORMATS = ["a", "b", "code", "del", "em", "i", "kbd", "s", "samp", "strong", "sub", "sup", "var"]
_PAGE_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.DOTALL | re.IGNORECASE)
_DOCX_TITLE = re.compile(r'<h1 class="title">(.*?)</h1>', re.DOTALL)
_CODE_PAGE = 0.95
"""Share of code from which a page is one of source code."""
_CODE_PAGE_CHARACTERS = 1_000
_TARGET = re.compile(r"\s*<[^<>]*>$")
"""The target in a role of Sphinx, such as :ref:`Installation <install>`."""


def _html(file: Path, source: str, repeated: Set[str]) -> Iterator[Section]:
    text = read_text(file)
    title = unescape(found[1]) if (found := _PAGE_TITLE.search(text)) else ""
    return _converted(" ".join(title.split()) or stem(source), text, repeated)


def _docx(file: Path, source: str, _: Set[str]) -> Iterator[Section]:
    from hopgate.retrievers.documents.zipped import docx_to_html

    title, text = docx_to_html(file)
    if not title and (heading := _DOCX_TITLE.search(text)):
        title = unescape(heading[1])
    return _converted(" ".join(title.split()) or stem(source), text)


def _epub(file: Path, source: str, _: Set[str]) -> Iterator[Section]:
    from hopgate.retrievers.documents.zipped import epub_chapters

    title, chapters = epub_chapters(file)
    found = (markdown_of(chapter.decode(errors="replace")) for chapter in chapters)
    return sections(title or stem(source), parts("\n\n".join(found)))


def _converted(title: str, html: str, repeated: Set[str] = frozenset()) -> Iterator[Section]:
    found = list(without_blocks(markdown_of(html), repeated))
    prose, code = (
        sum(len(text) for level, text in found if level == each) for each in (PROSE, CODE)
    )
    kind = "code" if code > max(_CODE_PAGE * (prose + code), _CODE_PAGE_CHARACTERS) else ""
    return (each._replace(kind=kind) for each in sections(title, found))


def markdown_of(html: str) -> str:
    """Convert HTML, without what pages have around their text."""
    from html_to_markdown import convert

    return convert(html, _options()).content or ""


@cache
def _options() -> ConversionOptions:
    from html_to_markdown import ConversionOptions

    return ConversionOptions(
        exclude_selectors=_AROUND,
        strip_tags=_FORMATS,
        autolinks=False,
        bullets="-",
        compact_tables=True,
        extract_metadata=False,
        skip_images=True,
    )


def repeated_blocks(*pages: str) -> list[str]:
    """Return the paragraphs that most of some pages share."""
    counts: Counter[str] = Counter()
    for page in pages:
        with suppress(OSError, ValueError):
            counts.update(blocks(markdown_of(read_text(Path(page)))))
    least = max(MIN_PAGES, len(pages) / 2)
    return [block for block, count in counts.items() if count >= least]


def _pdf(file: Path, source: str, _: Set[str]) -> Iterator[Section]:
    """Yield the text page by page, without the pages of a table of contents."""
    from pypdf import PdfReader

    for number, page in enumerate(PdfReader(file).pages, start=1):
        text = page.extract_text()
        lines = [line for line in text.splitlines() if line.strip()]
        if 2 * sum(map(is_contents, lines)) <= len(lines):
            yield Section([stem(source)], unwrap(without_contents(text)), number)


def _rst(file: Path, source: str, _: Set[str]) -> Iterator[Section]:
    """Read reStructuredText, that of Sphinx too; it can insert no other files."""
    from docutils.core import publish_doctree, publish_from_doctree
    from docutils.nodes import section, system_message
    from docutils.writers.html5_polyglot import Writer

    _read_unknown_markup()
    settings = {
        "_disable_config": True,
        "doctitle_xform": False,
        "embed_stylesheet": False,
        "file_insertion_enabled": False,
        "halt_level": 5,
        "line_length_limit": MAX_TEXT_CHARACTERS,
        "math_output": "LaTeX",
        "output_encoding": "unicode",
        "raw_enabled": False,
        "report_level": 5,
        "stylesheet_path": "",
        "syntax_highlight": "none",
    }
    tree = publish_doctree(read_text(file), settings_overrides=settings)
    for note in [*tree.findall(system_message)]:
        note.parent.remove(note)
    html = publish_from_doctree(tree, writer=Writer(), settings_overrides=settings)
    tops = [each for each in tree.findall(section) if each.parent is tree]
    title = " ".join(tops[0][0].astext().split()) if len(tops) == 1 else ""
    return _converted(title or stem(source), html)


@cache
def _read_unknown_markup() -> None:
    """Make docutils read the text in roles and directives of Sphinx, which it does not know."""
    from docutils import nodes
    from docutils.parsers.rst import Directive, directives, roles

    class Unknown(Directive):  # type: ignore[misc]
        optional_arguments = 1
        final_argument_whitespace = True
        has_content = True
        option_spec: ClassVar = defaultdict(lambda: str, {"": str})

        def run(self) -> list[nodes.Node]:
            group = nodes.container()
            group += [nodes.paragraph(text=text) for text in self.arguments]
            self.state.nested_parse(self.content, self.content_offset, group)
            return [group]

    class Contents(Unknown):
        def run(self) -> list[nodes.Node]:
            return []

    def role(_: str, raw: str, text: str, *rest: Any, **options: Any) -> Any:
        return [nodes.literal(raw, _TARGET.sub("", text) or text)], []

    def known(find: Callable[..., Any], unknown: Any) -> Callable[..., Any]:
        return lambda name, *rest: (find(name, *rest)[0] or unknown, [])

    for name in ("contents", "index", "toctree"):
        directives.register_directive(name, Contents)
    directives.directive = known(directives.directive, Unknown)
    roles.role = known(roles.role, role)


PARSERS: dict[str, Callable[[Path, str, Set[str]], Iterator[Section]]] = {
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".docx": _docx,
    ".epub": _epub,
    ".rst": _rst,
}


def parse(path: str, kind: str, source: str, repeated: Collection[str]) -> list[Section]:
    """Parse a file; see `apart.Parser.parse`."""
    found, characters = list[Section](), 0
    try:
        for section in PARSERS[kind](Path(path), source, frozenset(repeated)):
            found.append(section)
            characters += len(section.text)
            if characters > MAX_TEXT_CHARACTERS:
                raise ValueError(f"its text is over {MAX_TEXT_CHARACTERS >> 20} MB: split it")
    except (MemoryError, ValueError):
        raise
    except ImportError as error:
        needed = f"reading {kind} needs {error.name}: pip install 'hopgate[documents]'"
        raise RuntimeError(needed) from error
    except Exception as error:  # the parsers' errors have no common base class
        raise ValueError(f"it cannot be read as {kind}: {reason(error)}") from error
    return found
