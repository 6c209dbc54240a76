"""`hopgate new`: a small project of one's own, copied from `template/`, with its index built."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

from hopgate.commands.options import command
from hopgate.terminal import pages

TEMPLATE = Path(__file__).parents[1] / "template"
PLACEHOLDER, TITLE = "my-project", "My project"  # the template's own name
DOTFILES = ("env.example", "gitignore")  # without their dot, so that packaging keeps them


@command()
def new(folder: Path, /) -> None:
    """Write a small project of your own into FOLDER, which must be new or empty.

    It has a graph with your model, instructions and index, the files of a LangGraph server, two
    sample documents and tests.

    Args:
        folder: Where to write it.
    """
    with pages.err.status("building the index"):
        created = create(folder)
    pages.output(created, _show)


def _show(created: dict[str, Any]) -> None:
    """Print where a new project is, and the next steps."""
    files = f"{len(created['files'])} files, and an index of {created['passages']} passages"
    pages.line(f"{pages.value('folder', created['folder'])}: {files}. Try it:")
    pages.line(f"  cd {pages.value('folder', shlex.quote(created['folder']))}")
    pages.line('  hopgate ask "When does the canteen close?"')
    pages.line("  langgraph dev\n  python -m pytest\nREADME.md there says what to change.")


def create(folder: Path) -> dict[str, Any]:
    """Write a project into a folder that is missing or empty, and build its index.

    If the index cannot be built, nothing is left behind.

    Returns:
        The `folder`, its `files` (relative to it), and the number of `passages` in its index.

    Raises:
        ValueError: The folder is not empty, or is a file.
        RuntimeError: FAISS is missing.
        OSError: The folder cannot be written.
    """
    from hopgate.retrievers.building import build_index

    existed = folder.exists()
    if existed and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a new folder")
    if existed and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; name a new folder, or an empty one")
    try:
        files = _copy(folder)
        report = build_index([folder / "documents"], folder / "index")
    except BaseException:
        for path in folder.iterdir() if existed else [folder]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        raise
    return {"folder": str(folder), "files": files, "passages": report.passages}


def _copy(folder: Path) -> list[str]:
    """Write the template's files under the project's own name."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or PLACEHOLDER
    written = []
    for source in sorted(path for path in TEMPLATE.rglob("*") if path.is_file()):
        if "__pycache__" in source.parts:
            continue
        relative = source.relative_to(TEMPLATE)
        if relative.name in DOTFILES:
            relative = relative.with_name(f".{relative.name}")
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8").replace(PLACEHOLDER, name)
        text = text.replace(TITLE, name.replace("-", " ").capitalize())
        target.write_text(text, encoding="utf-8")
        written.append(relative.as_posix())
    return written
