"""Documents in, passages out: .txt, .md, .html, .pdf and .jsonl files, split to about 100 words.

A file that cannot be read is reported with its reason, and the rest goes on.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from hopgate.retrievers.base import Passage, make_passage

CHUNK_CHARACTERS = 600
"""Length of a passage: about 100 words of English, the unit of DPR's and Contriever's Wikipedia."""
OVERLAP_CHARACTERS = 100
"""What a passage repeats of the one before it, at most: about a sentence."""

_SEPARATORS = ["\n\n", "\n", ". ", " ", ""]
_SPACE_BEFORE_MARK = re.compile(r" (?=[,.;:!?)\]])")
"""What taking the tags out of `<b>word</b>,` leaves before the comma."""
_HEADINGS = [("#", "1"), ("##", "2"), ("###", "3")]

ReadProgress = Callable[[int, int], None]
"""Called with the files read so far and their total."""


class MissingExtraError(RuntimeError):
    """A kind of file needs packages that are not installed."""


@dataclass(frozen=True)
class SkippedFile:
    """A file that gave no passages, and why."""

    path: str
    reason: str


@dataclass
class Documents:
    """What was read.

    Attributes:
        passages: in the order of the files; the same content may come twice.
        files: how many files gave passages.
        skipped: files that gave none.
    """

    passages: list[Passage] = field(default_factory=list)
    files: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)


def load_documents(paths: Sequence[Path | str], progress: ReadProgress | None = None) -> Documents:
    """Read files and folders into passages.

    Folders are read with all their subfolders; hidden files, files of other kinds and loops of
    symbolic links are passed over. Text that is not UTF-8 is taken as UTF-16 if it is marked so,
    else as Windows-1252.

    Args:
        paths: files or folders.
        progress: called after each file.

    Returns:
        The passages, and the files that could not be read.

    Raises:
        ValueError: a path does not exist or is of another kind, or nothing at all could be read.
        MissingExtraError: nothing could be read, for want of the extra `documents`.
    """
    return read_files(find_files(paths), progress)


def read_files(
    found: Sequence[tuple[Path, str]], progress: ReadProgress | None = None
) -> Documents:
    """Read what `find_files` found, see `load_documents`."""
    documents = Documents()
    missing: MissingExtraError | None = None
    for done, (file, source) in enumerate(found, start=1):
        try:
            _add_file(documents, file, source)
        except MissingExtraError as error:
            missing = error
            documents.skipped.append(SkippedFile(str(file), str(error)))
        if progress:
            progress(done, len(found))
    if not documents.passages:
        raise missing or ValueError(_nothing_read(documents.skipped))
    return documents


def _nothing_read(skipped: Sequence[SkippedFile]) -> str:
    shown = [f"{file.path}: {file.reason}" for file in skipped[:3]]
    more = len(skipped) - len(shown)
    reasons = "; ".join([*shown, f"and {more} more"] if more else shown)
    return f"no passage could be read ({reasons})"


def _add_file(documents: Documents, file: Path, source: str) -> None:
    try:
        passages = list(_READERS[file.suffix.lower()](file, source))
    except MissingExtraError:
        raise
    except Exception as error:  # any parser may fail in its own way on a broken file
        reason = " ".join(str(error).split()) or type(error).__name__
        documents.skipped.append(SkippedFile(str(file), reason))
        return
    if not passages:
        documents.skipped.append(SkippedFile(str(file), "it holds no text"))
        return
    documents.passages.extend(passages)
    documents.files += 1


def find_files(paths: Sequence[Path | str]) -> list[tuple[Path, str]]:
    """List the files to read, each once, in a fixed order.

    Returns:
        Each file with its source: its path relative to the folder that was given, or its name.

    Raises:
        ValueError: a path does not exist or is of another kind, or a folder has no such file.
    """
    if not paths:
        raise ValueError("no paths given: name files or folders to index")
    found: dict[Path, tuple[Path, str]] = {}
    for path in map(Path, paths):
        for file, source in _expand(path):
            found.setdefault(file.resolve(), (file, source))
    return list(found.values())


def _expand(path: Path) -> list[tuple[Path, str]]:
    kinds = " ".join(_READERS)
    if path.is_dir():
        files = sorted(_walk(path))
        if not files:
            raise ValueError(f"{path} holds no file that can be read ({kinds})")
        return [(file, file.relative_to(path).as_posix()) for file in files]
    if not path.exists():
        raise ValueError(f"{path} does not exist: give files or folders")
    if path.suffix.lower() not in _READERS:
        raise ValueError(f"{path} is of a kind that cannot be read: give {kinds}")
    return [(path, path.name)]


def _walk(top: Path) -> Iterator[Path]:
    """Yield the readable files under a folder; a folder reached again by a link is left out."""
    seen: set[str] = set()
    for folder, subfolders, names in os.walk(top, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in names:
            file = Path(folder, name)
            if not name.startswith(".") and file.suffix.lower() in _READERS and file.is_file():
                yield file


def _read_text(file: Path) -> str:
    """Decode a file, see `load_documents`; raise ValueError if it is not text."""
    data = file.read_bytes()
    text = data.decode(_encoding(data))
    if "\x00" in text:
        raise ValueError("it is not text")
    return text


def _encoding(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            data.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return "latin-1"


def _txt(file: Path, source: str) -> Iterator[Passage]:
    return _split(file.stem, _unwrap(_read_text(file)), source)


def _markdown(file: Path, source: str) -> Iterator[Passage]:
    """Split at headings; a passage's title is the headings above it, `Document > Section`."""
    from langchain_text_splitters import MarkdownHeaderTextSplitter

    for section in MarkdownHeaderTextSplitter(_HEADINGS).split_text(_read_text(file)):
        headings = [section.metadata[key] for _, key in _HEADINGS if key in section.metadata]
        yield from _split(" > ".join(headings) or file.stem, section.page_content, source)


def _html(file: Path, source: str) -> Iterator[Passage]:
    loader = _community_loaders().BSHTMLLoader(
        str(file),
        open_encoding=_encoding(file.read_bytes()),
        bs_kwargs={"features": "html.parser"},
        get_text_separator="\n",
    )
    for document in loader.load():
        title = " ".join(document.metadata["title"].split())
        if title in ("", "None"):  # the loader's name for an empty <title>
            title = file.stem
        text = _SPACE_BEFORE_MARK.sub("", _unwrap(document.page_content).removeprefix(title))
        yield from _split(title, text, source)


def _pdf(file: Path, source: str) -> Iterator[Passage]:
    """Split page by page, so that a passage has one page number."""
    for document in _community_loaders().PyPDFLoader(str(file)).load():
        text = _unwrap(document.page_content)
        yield from _split(file.stem, text, source, page=document.metadata["page"] + 1)


def _jsonl(file: Path, source: str) -> Iterator[Passage]:
    for number, line in enumerate(_read_text(file).split("\n"), start=1):
        if line.strip():
            title, text = _row(line, number)
            yield from _split(title, text, source)


def _row(line: str, number: int) -> tuple[str, str]:
    """Give a row's title and text; an empty text makes no passage."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} is not JSON: {error.msg}") from error
    if not isinstance(row, dict) or not isinstance(row.get("text", 0), str | None):
        raise ValueError(f'line {number} has no text: a row is {{"title": "…", "text": "…"}}')
    title = row.get("title") or ""
    if not isinstance(title, str):
        raise ValueError(f"line {number} has a title that is not text: {title!r}")
    return title, row["text"] or ""


_READERS: dict[str, Callable[[Path, str], Iterable[Passage]]] = {
    ".txt": _txt,
    ".md": _markdown,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".jsonl": _jsonl,
}


def _split(title: str, text: str, source: str, page: int | None = None) -> Iterator[Passage]:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    splitter = RecursiveCharacterTextSplitter(
        chunk_size=CHUNK_CHARACTERS,
        chunk_overlap=OVERLAP_CHARACTERS,
        separators=_SEPARATORS,
        keep_separator="end",
    )
    for chunk in splitter.split_text(text):
        if chunk.strip():
            yield make_passage(title, chunk, source, page)


def _unwrap(text: str) -> str:
    """Join the lines of each paragraph: line breaks of a page or of HTML say nothing."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return "\n\n".join(part for part in paragraphs if part)


def _community_loaders() -> ModuleType:
    """Import LangChain's community loaders, without their notice of being sunset."""
    try:
        import bs4  # noqa: F401
        import pypdf  # noqa: F401

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*langchain-community.*")
            from langchain_community import document_loaders
    except ImportError as error:
        raise MissingExtraError(
            f"reading .html and .pdf needs {error.name}: pip install 'hopgate[documents]'"
        ) from error
    return document_loaders
