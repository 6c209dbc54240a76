"""What `make docs` adds to the pages of docs/: the README, and the files that pages link to.

The README is the start page. A link that leaves docs/ leads to a page that shows that file, so the
site is complete without the repository.
"""

import re
from os.path import normpath, relpath
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
SOURCE = "source"  # where the pages of linked files are
LANGUAGES = {".py": "python", ".js": "javascript", ".json": "json", ".yaml": "yaml"}

_LINK = re.compile(r"(\]\()(?!https?:|#)([^)#\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages made from files outside docs/."""
    texts = {
        PurePosixPath("docs", file.src_uri): file.content_string
        for file in files
        if file.is_documentation_page()
    }
    for name, page in PAGES.items():
        text = texts[PurePosixPath(name)] = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    linked = {target for place, text in texts.items() for target in _outside(place, text)}
    for target in sorted(linked):
        files.append(File.generated(config, _page_of(target), content=_shown(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside docs/ into links to their pages."""
    here = page.file.src_uri
    place = next(
        (PurePosixPath(name) for name, made in PAGES.items() if made == here),
        PurePosixPath("docs", here),
    )

    def moved(link: re.Match[str]) -> str:
        target = _target(place, link[2])
        if target.parts[0] == "docs":
            found = str(PurePosixPath(*target.parts[1:]))
        else:
            found = _page_of(target)
        return f"{link[1]}{relpath(found, PurePosixPath(here).parent)}{link[3]}"

    return markdown if here.startswith(f"{SOURCE}/") else _LINK.sub(moved, markdown)


def _outside(place: PurePosixPath, text: str) -> set[PurePosixPath]:
    """Return the linked files that are not in docs/ and have no page yet."""
    targets = {_target(place, link[2]) for link in _LINK.finditer(text)}
    return {each for each in targets if each.parts[0] != "docs" and str(each) not in PAGES}


def _target(place: PurePosixPath, link: str) -> PurePosixPath:
    return PurePosixPath(normpath(place.parent / link))


def _page_of(target: PurePosixPath) -> str:
    return PAGES.get(str(target)) or f"{SOURCE}/{target}.md"


def _shown(target: PurePosixPath) -> str:
    """Return a page with the file's text, or with a folder's list of files."""
    path = ROOT / target
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if each.name != "__pycache__")
        return "\n".join([f"# {target}/\n", *(f"- `{name}`" for name in names)])
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return f"# {target}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"
