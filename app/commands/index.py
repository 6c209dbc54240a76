"""`hopgate index`: build, change, copy, describe and check indexes."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from rich.filesize import decimal

from hopgate.commands.options import command
from hopgate.retrievers.language import LANGUAGES
from hopgate.terminal.errors import explain_error
from hopgate.terminal.pages import (
    AS_JSON,
    err,
    line,
    note,
    output,
    page,
    place,
    print_json,
    table,
    value,
)
from hopgate.terminal.progress import resumable, stages

if TYPE_CHECKING:
    from hopgate.retrievers.building import BuildReport
    from hopgate.retrievers.documents.finding import SkippedFile
    from hopgate.retrievers.index.change import BuildProgress
    from hopgate.retrievers.index.verifying import VerifyReport

SKIPPED_SHOWN = 20
Paths = Annotated[tuple[Path, ...], {"required": True}]
Either = Annotated[Path | None, {"metavar": "[INDEX]"}]
DefaultMode = Annotated[str | None, click.Choice(["auto", "dense", "bm25", "hybrid"])]
Language = Annotated[str | None, click.Choice(LANGUAGES, case_sensitive=False)]


@command()
def build(
    paths: tuple[Path, ...] = (),
    /,
    *,
    vectors: tuple[Path, ...] = (),
    out: Annotated[Path, {"names": ["--out", "--index"]}],
    encoder: str | None = None,
    factory: str | None = None,
    language: Language = None,
    mode: DefaultMode = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    replace: bool = False,
) -> None:
    """Build an index of files and folders.

    The index then contains these files and no others. Passages that it already has are not encoded
    again. If it is interrupted, the same command resumes.

    Args:
        paths: The files and folders.
        vectors: In place of PATHS: a .npy file of vectors, with passages in the .jsonl of the same
            name; repeatable.
        out: Folder or store to write.
        encoder: minilm, contriever, contriever-msmarco, or a model's folder or hub name. Default:
            the index's own if there is one, else minilm.
        factory: FAISS factory string, e.g. Flat or IVF4096,SQ8. Default: depends on the collection.
        language: Language of the documents, for BM25. Default: detected when the
            index is built first.
        mode: Default mode of searches; auto measures which. Default: the index's own, else auto.
        query_prefix: Prefix of each query, e.g. 'query: '. Default: the model's own.
        passage_prefix: Prefix of each passage. Default: the model's own.
        replace: Allow this to remove most passages of an existing index, or to change its encoder.
    """
    from hopgate.retrievers.building import build_from_vectors, build_index

    if bool(paths) == bool(vectors):
        raise click.UsageError("give PATHS, or --vectors FILE")
    with resumable(), stages() as progress:
        build = partial(build_index, paths) if paths else partial(build_from_vectors, vectors)
        report = build(
            out,
            encoder,
            progress,
            factory=factory,
            language=language or "",
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
            mode=mode or "",
            replace=replace,
        )
    output(report, _show_built)


@command()
def add(paths: Paths, /, *, index: Path, encoder: str | None = None) -> None:
    """Add files and folders to an index.

    Documents that it already has are replaced.

    Args:
        paths: The files and folders.
        index: Folder of the index, or a store: milvus:NAME, qdrant:NAME, pgvector:NAME.
        encoder: Where the index's encoder is now, if it was moved.
    """
    from hopgate.retrievers import building

    with resumable(), stages() as progress:
        report = building.add(paths, index, encoder, progress)
    output(report, _show_built)


@command()
def sync(folder: Path, /, *, index: Path, encoder: str | None = None, watch: bool = False) -> None:
    """Make an index follow FOLDER.

    New files are added, changed ones replaced, and those that are gone removed; the others are not
    read. Documents from elsewhere stay. With --watch and --json, each change is a JSON document on
    a line of its own.

    Args:
        folder: The folder to follow.
        index: Folder of the index, or a store: milvus:NAME, qdrant:NAME, pgvector:NAME.
        encoder: Where the index's encoder is now, if it was moved.
        watch: Keep doing it after every change, until Ctrl-C.
    """
    from hopgate.retrievers import building, watching

    if watch:
        with suppress(KeyboardInterrupt):
            watching.watch(folder, index, _repeated(partial(building.sync, folder, index, encoder)))
        return
    with resumable(), stages() as progress:
        report = building.sync(folder, index, encoder, progress)
    output(report, _show_built)


def _repeated(update: "Callable[[BuildProgress], BuildReport]") -> Callable[[], bool]:
    """Return a function that updates once, shows changes and new errors, and says if it worked."""
    failed = ""

    def run() -> bool:
        nonlocal failed
        try:
            with stages(brief=True) as progress:
                report = update(progress)
        except Exception as error:
            if failed != (text := explain_error(error)[0]):
                note(f"{_now():%H:%M:%S} not updated, trying again: {text}")
            failed = text
            return False
        failed = ""
        if report.changed or report.skipped:
            _show_change(report)
        return True

    return run


def _show_change(report: "BuildReport") -> None:
    """Print one change during a watch: as a JSON document, or as a line."""
    if click.get_current_context().meta[AS_JSON]:
        print_json({"time": _now().isoformat(timespec="seconds"), **asdict(report)})
        return
    _show_skipped(report.skipped)
    counts = {name: each for name, each in asdict(report).items() if each and type(each) is int}
    line(f"{_now():%H:%M:%S} {value('counts', counts)}")


def _now() -> datetime:
    return datetime.now().astimezone()


@command()
def delete(sources: tuple[str, ...] = (), /, *, id: tuple[str, ...] = (), index: Path) -> None:
    """Delete documents from an index.

    SOURCES are names of documents, or patterns such as 'reports/*'. Deleted documents are no longer
    found; `hopgate index compact` frees their space on disk.

    Args:
        sources: The documents.
        id: A passage to delete, by its id; repeatable.
        index: Folder of the index, or a store: milvus:NAME, qdrant:NAME, pgvector:NAME.
    """
    from hopgate.retrievers import building

    if not sources and not id:
        raise click.UsageError("nothing to delete: give SOURCES, or --id")
    with stages() as progress:
        report = building.delete(index, sources, id, progress)
    output(report, _show_built)


@command()
def compact(folder: Either = None, /, *, index: Path | None = None) -> None:
    """Free the space of deleted documents.

    The index is written again, in as few segments as possible.

    Args:
        folder: The index.
        index: The same as INDEX.
    """
    from hopgate.retrievers import building

    with stages() as progress:
        report = building.compact(_one(folder, index), progress)
    output(report, _show_built)


@command()
def info(folder: Either = None, /, *, index: Path | None = None) -> None:
    """Describe an index.

    Also which encoder it needs, and how many deleted passages it still stores. --json prints the
    whole manifest, with the files and their hashes. Of a store, every passage is listed to count
    them.

    Args:
        folder: The index.
        index: The same as INDEX.
    """
    from hopgate.retrievers.index import manifest
    from hopgate.retrievers.stores.collection import Collection
    from hopgate.retrievers.stores.names import is_store

    index = _one(folder, index)
    if is_store(index):
        output(Collection(str(index)).report(), _show_info)
    else:
        output(manifest.info(index), _show_info, index)


@command("try")
def try_(questions: Path, /, *, index: str, k: Annotated[int, {"names": ["-k"]}] = 5) -> None:
    """Compare the modes of an index on your own QUESTIONS.

    QUESTIONS is a .txt with a question a line, or a .jsonl of {"question": …, "expected": …}, where
    `expected` is the source or the id of the passage to find, or a list of them. Without it, the
    best passages of each mode are printed. `hopgate index build --mode` sets the default mode.

    Args:
        questions: The file.
        index: Folder of the index, a store, or `sample`.
        k: Passages for each question.
    """
    from hopgate.retrievers.index import trying

    asked = trying.read_questions(questions)
    with err.status("searching"):
        compared = trying.compare_modes(index, asked, k)
    output(compared, _show_compared)


@command()
def push(source: Path, target: Path, /, *, replace: bool = False) -> None:
    """Copy an index with its vectors into a store, or back.

    SOURCE and TARGET are folders or stores. TARGET then holds what SOURCE holds, and nothing is
    encoded again. If it is interrupted, the same command resumes.

    Args:
        source: The index to copy.
        target: Where to.
        replace: Allow this to remove most passages of TARGET, or to change its encoder.
    """
    from hopgate.retrievers.stores import push as pushing

    with resumable(), stages() as progress:
        report = pushing.push(source, target, progress, replace=replace)
    output(report, _show_built)


@command()
def verify(
    folder: Either = None, /, *, index: Path | None = None, encoder: str | None = None
) -> None:
    """Check every byte of an index, and that its parts match.

    Args:
        folder: The index.
        index: The same as INDEX.
        encoder: Where the index's encoder is now, if it was moved.
    """
    from hopgate.retrievers.index import verifying
    from hopgate.retrievers.stores.names import check_folder

    index = _one(folder, index)
    check_folder(index, "verify")
    with err.status("verifying"):
        report = verifying.verify(index, encoder)
    output(report, _show_verified)
    if report.problems:
        raise SystemExit(1)


index = click.Group(
    "index",
    [build, add, sync, delete, compact, info, push, try_, verify],
    help="Build, change, describe and check indexes.",
)


def _one(folder: Path | None, index: Path | None) -> Path:
    """Return the index that was named, as an argument or as --index."""
    if (folder is None) == (index is None):
        raise click.UsageError("name one index: as INDEX, or with --index INDEX")
    return folder or index  # type: ignore[return-value]


def _show_built(report: "BuildReport") -> None:
    """Print how a change affected an index, and which files were skipped."""
    from hopgate.retrievers.documents.finding import ignored_summary

    _show_skipped(report.skipped)
    if summary := ignored_summary(report.ignored):
        note(summary)
    if not report.changed:
        line("nothing changed")
    page(asdict(report) | {"skipped": None, "ignored": None, "changed": None})
    line(f'Ask it: hopgate ask "…" --index {shlex.quote(report.path)}')


def _show_skipped(skipped: "Sequence[SkippedFile]") -> None:
    for each in skipped[:SKIPPED_SHOWN]:
        note(f"{each.path}: {each.reason}", "skipped")
    if (more := len(skipped) - SKIPPED_SHOWN) > 0:
        note(f"{more:,} more; --json lists them all", "skipped")


def _show_verified(report: "VerifyReport") -> None:
    for problem in report.problems:
        note(problem, "✗")
    if not report.problems:
        line("every byte is as written")
        page(report)


def _show_compared(compared: Mapping[str, Any]) -> None:
    """Print ranks by mode where they are known, else the passages."""
    for row in compared["questions"]:
        line((row["question"], "bold"))
        for mode, hits in row["hits"].items():
            if row["expected"]:
                line(f"  {mode:<7} rank {value('rank', row['ranks'][mode])}")
            for hit in hits[: 1 if row["expected"] else None]:
                line(f"  {mode:<7} {place(hit) or hit['title']}: ", (hit["text"][:100], "dim"))
    if compared["modes"]:
        columns = ["mode", "first", f"in {compared['k']}=found", "mrr"]
        table(f"{compared['asked']} questions", columns, compared["modes"])


def _show_info(document: Mapping[str, Any], path: Path | None = None) -> None:
    """Print the description of an index or a store."""
    encoder = document["encoder"]
    shown = {
        name: document[name] for name in ("passages", "sources", "language", "mode", "mode_reason")
    }
    shown["encoder"] = f"{encoder['name']}, {encoder['dimension']} dimensions"
    shown["folders"] = document["roots"] or "none: only files were indexed"
    shown["created"] = document["created"]
    if path is None:
        line((document["store"], "bold"))
        page(shown | {"half filled": not document["complete"]})
    else:
        line((str(path), "bold"))
        page(shown | _in_a_folder(document, path))


def _in_a_folder(document: Any, path: Path) -> dict[str, Any]:
    words = document["words"].get("segments", ())
    vectors = sum(each["rows"] for each in document["segments"])
    freed = max(vectors, sum(each["max_doc"] for each in words)) - document["passages"]
    frees = f"`hopgate index compact {shlex.quote(str(path))}` frees their space"
    recalls = [each["search"].get("recall") for each in document["segments"]]
    measured = [recall for recall in recalls if recall is not None]
    return {
        "version": document["version"],
        "factory": f"{document['factory']}, {'chosen' if document['auto'] else 'as given'}",
        "recall@10": min(measured) if measured else "exact",
        "segments": f"{len(document['segments'])} of vectors, {len(words)} of words",
        "size": decimal(sum(each["bytes"] for each in document["files"].values())),
        "still stored": f"{freed:,} deleted: {frees}" if freed else "",
    }
