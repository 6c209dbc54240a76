"""The parsers of .html, .pdf, .docx, .epub and .rst files.

Such files can make a parser take hours or all memory, so they run in a process of their own.
"""

from __future__ import annotations

import gc
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from hopgate.common.errors import reason
from hopgate.common.workers import OutOfMemory, OwnProcess, ProcessLost
from hopgate.retrievers.documents.cutting import Section
from hopgate.retrievers.documents.plaintext import is_contents, read_text, unwrap, without_contents

if TYPE_CHECKING:
    from bs4 import BeautifulSoup

MAX_TEXT_CHARACTERS = 128 << 20
"""Longest text of one file."""
MAX_SECONDS = 120.0
"""Longest time for one file: a PDF of some thousands of pages."""
MAX_MEMORY_BYTES = 4 << 30
"""Maximum memory of the process: twice what 16 MB of HTML take."""
_HTML_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_MARK = "\x1e"
"""Marks both ends of a heading in the text of a page, from which it is removed before."""
_SPACE_BEFORE_MARK = re.compile(r" (?=[,.;:!?)\]])")
"""The space left before the comma when the tags of `<b>word</b>,` are removed."""
_TITLED = ("document", "section")
_TARGET = re.compile(r"\s*<[^<>]*>$")
"""The target in a role of Sphinx, such as :ref:`Installation <install>`."""


def stem(source: str) -> str:
    """Return the name of a source without its ending: the title of a document without one."""
    return PurePosixPath(source).stem


def sections(title: str, parts: Iterable[tuple[int | None, str]]) -> Iterator[Section]:
    """Yield each text with the headings above it, the title first.

    Args:
        title: Title of the document; a heading that repeats it is dropped.
        parts: Level (None for text) and text, in the order of the document.
    """
    above: dict[int, str] = {}
    texts: list[str] = []
    for level, text in parts:
        if level is None:
            texts.append(text)
            continue
        yield Section([title, *above.values()], "\n\n".join(texts))
        texts = []
        above = {each: heading for each, heading in above.items() if each < level}
        if text != title:
            above[level] = text
    yield Section([title, *above.values()], "\n\n".join(texts))


def _html(file: Path, source: str) -> Iterator[Section]:
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(read_text(file), "html.parser")
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    return sections(title or stem(source), _page(soup))


def _docx(file: Path, source: str) -> Iterator[Section]:
    from bs4 import BeautifulSoup

    from hopgate.retrievers.documents.zipped import docx_to_html

    title, html = docx_to_html(file)
    soup = BeautifulSoup(html, "html.parser")
    if not title and (heading := soup.find("h1", class_="title")):
        title = " ".join(heading.get_text(" ").split())
    return sections(title or stem(source), _page(soup))


def _epub(file: Path, source: str) -> Iterator[Section]:
    from bs4 import BeautifulSoup

    from hopgate.retrievers.documents.zipped import epub_chapters

    title, chapters = epub_chapters(file)
    pages = (_page(BeautifulSoup(chapter, "html.parser")) for chapter in chapters)
    return sections(title or stem(source), (part for page in pages for part in page))


def _page(soup: BeautifulSoup) -> Iterator[tuple[int | None, str]]:
    """Yield the headings of a page, each with its level, and the texts between them."""
    for tag in soup(["script", "style", "template", "noscript", "title"]):
        tag.decompose()
    for string in soup(string=re.compile(_MARK)):
        string.replace_with(type(string)(string.replace(_MARK, " ")))
    within: set[int] = set()
    for tag in soup(_HTML_HEADINGS):
        if id(tag) in within:
            continue
        within.update(map(id, tag(_HTML_HEADINGS)))
        heading = " ".join(tag.get_text(" ").split())
        tag.string = f"{_MARK}{tag.name[1]}{heading}{_MARK}" if heading else ""
    for number, part in enumerate(soup.get_text("\n").split(_MARK)):
        if number % 2:
            yield int(part[0]), part[1:]
        else:
            yield None, _SPACE_BEFORE_MARK.sub("", unwrap(without_contents(part)))


def _pdf(file: Path, source: str) -> Iterator[Section]:
    """Yield the text page by page, without the pages of a table of contents."""
    from pypdf import PdfReader

    for number, page in enumerate(PdfReader(file).pages, start=1):
        text = page.extract_text()
        lines = [line for line in text.splitlines() if line.strip()]
        if 2 * sum(map(is_contents, lines)) <= len(lines):
            yield Section([stem(source)], unwrap(without_contents(text)), number)


def _rst(file: Path, source: str) -> Iterator[Section]:
    """Read reStructuredText, that of Sphinx too; it can insert no other files."""
    from docutils.core import publish_doctree

    _read_unknown_markup()
    settings = {
        "_disable_config": True,
        "file_insertion_enabled": False,
        "halt_level": 5,
        "line_length_limit": MAX_TEXT_CHARACTERS,
        "raw_enabled": False,
        "report_level": 5,
        "syntax_highlight": "none",
    }
    tree = publish_doctree(read_text(file), settings_overrides=settings)
    return sections(tree.get("title") or stem(source), _rst_parts(tree, 0))


def _rst_parts(node: Any, level: int) -> Iterator[tuple[int | None, str]]:
    from docutils import nodes

    for child in node.children:
        if isinstance(child, nodes.Invisible | nodes.system_message):
            continue
        if isinstance(child, nodes.title | nodes.subtitle) and node.tagname in _TITLED:
            yield level + 1, " ".join(child.astext().split())
        elif isinstance(child, nodes.FixedTextElement):
            yield None, child.astext()
        elif isinstance(child, nodes.TextElement):
            yield None, unwrap(without_contents(child.astext()))
        else:
            yield from _rst_parts(child, level + isinstance(child, nodes.section))


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

    for name in ("contents", "toctree"):
        directives.register_directive(name, Contents)
    directives.directive = known(directives.directive, Unknown)
    roles.role = known(roles.role, role)


PARSERS: dict[str, Callable[[Path, str], Iterator[Section]]] = {
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".docx": _docx,
    ".epub": _epub,
    ".rst": _rst,
}


def parse(message: Mapping[str, Any]) -> list[Section]:
    """Parse a file, in a process of its own.

    Args:
        message: Its `path`, in bytes, and its `source`.

    Raises:
        ValueError: It cannot be parsed.
        RuntimeError: The extra `documents` is missing.
    """
    gc.set_threshold(100_000, 50, 100)  # documents are large trees: up to twice as fast
    file, found, characters = Path(os.fsdecode(message["path"])), list[Section](), 0
    kind = file.suffix.lower()
    try:
        for section in PARSERS[kind](file, message["source"]):
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
    finally:
        gc.collect()
    return found


def parsing_process() -> OwnProcess:
    """Return the process for `parse_apart`; it starts with the first file."""
    return OwnProcess(quiet=True, memory=MAX_MEMORY_BYTES)


def parse_apart(process: OwnProcess, file: Path, source: str) -> list[Section]:
    """Let a process parse a file.

    Raises:
        ValueError: It cannot be parsed, or not within the limits of time and memory.
        RuntimeError: The extra `documents` is missing.
    """
    message = {"path": os.fsencode(file), "source": source}
    try:
        found = process.call(f"{__name__}:parse", message, MAX_SECONDS)
    except TimeoutError:
        raise ValueError(f"it took over {MAX_SECONDS:g} s to read: convert it to .txt") from None
    except OutOfMemory:
        raise ValueError("it takes too much memory to read: convert it to .txt") from None
    except ProcessLost:
        raise ValueError("the process that read it crashed: convert it to .txt") from None
    return [Section(*each) for each in found]
