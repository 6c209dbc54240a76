"""The commands of `hopgate index`."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopgate.options import (
    FILE,
    combined,
    hired,
    json_option,
    output,
    print_json,
    workers_options,
)
from hopgate.retrievers.language import LANGUAGES

if TYPE_CHECKING:
    from hopgate.retrievers.building import BuildReport
    from hopgate.retrievers.change import BuildProgress
    from hopgate.retrievers.encoders import Encoder
    from hopgate.retrievers.loaders import SkippedFile

INDEX_HELP = "Folder of the index, or a store: milvus:NAME, qdrant:NAME, pgvector:NAME."
index_option = click.option("--index", required=True, type=FILE, help=INDEX_HELP)
moved_option = click.option("--encoder", help="Where the index's encoder is now, if it was moved.")
paths_argument = click.argument("paths", nargs=-1, required=True, type=FILE)


@click.group("index")
def index_group() -> None:
    """Build, change, describe and check indexes."""


def either_folder(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take its index as the first argument or as --index."""

    def chosen(context: click.Context, _: click.Parameter, index: Path | None) -> Path:
        argument: Path | None = context.params.pop("folder", None)
        if (argument is None) == (index is None):
            raise click.UsageError("name one index: as INDEX, or with --index INDEX")
        return argument or index  # type: ignore[return-value]

    return combined(
        click.argument("folder", required=False, type=FILE, is_eager=True, metavar="[INDEX]"),
        click.option("--index", type=FILE, callback=chosen, help="The same as INDEX."),
    )(command)


@index_group.command("build")
@click.argument("paths", nargs=-1, type=FILE)
@click.option(
    "--vectors",
    multiple=True,
    type=FILE,
    help="In place of PATHS: a .parquet file with columns text, title and vector, or a .npy file "
    "of vectors with passages in the .jsonl of the same name; repeatable.",
)
@click.option("--out", "--index", "out", required=True, type=FILE, help="Folder or store to write.")
@click.option(
    "--encoder",
    help="minilm, contriever, contriever-msmarco, or a model's folder or hub name. "
    "Default: the index's own if there is one, else minilm.",
)
@click.option(
    "--factory",
    help="FAISS factory string, e.g. Flat or IVF4096,SQ8. Default: depends on the collection.",
)
@click.option(
    "--language",
    type=click.Choice(LANGUAGES, case_sensitive=False),
    metavar="CODE",
    help=f"Language of the documents, for BM25: {', '.join(LANGUAGES)}. "
    "Default: detected when the index is built first.",
)
@click.option(
    "--query-prefix",
    help="Prefix of each query, e.g. 'query: '. Default: the model's own.",
)
@click.option("--passage-prefix", help="Prefix of each passage. Default: the model's own.")
@click.option(
    "--replace",
    is_flag=True,
    help="Allow this to remove most passages of an existing index, or to change its encoder.",
)
@workers_options
@json_option
def index_build(
    paths: tuple[Path, ...],
    vectors: tuple[Path, ...],
    out: Path,
    encoder: str | None,
    factory: str | None,
    language: str | None,
    query_prefix: str | None,
    passage_prefix: str | None,
    replace: bool,
    workers: int | None,
    ray: str | None,
    as_json: bool,
) -> None:
    """Build an index of files and folders.

    The index then contains these files and no others. Passages that it already has are not encoded
    again. If it is interrupted, the same command resumes.
    """
    from hopgate import render
    from hopgate.retrievers.building import build_from_vectors, build_index

    if bool(paths) == bool(vectors):
        raise click.UsageError("give PATHS, or --vectors FILE")
    if vectors and (workers or ray):
        raise click.UsageError("--workers and --ray encode, and --vectors come encoded")
    with hired(workers, ray) as hands, render.stages() as progress:
        chosen: str | Encoder | None = encoder
        if query_prefix is not None or passage_prefix is not None:
            chosen = _with_prefixes(encoder, out, query_prefix, passage_prefix)
        build = partial(build_from_vectors, vectors)
        if paths:
            build = partial(build_index, paths, workers=hands)
        report = build(
            out,
            chosen,
            progress,
            factory,
            render.note,
            language=language or "",
            replace=replace,
        )
    output(report, as_json, render.built)


def _with_prefixes(
    encoder: str | None, out: Path, query: str | None, passage: str | None
) -> "Encoder":
    """Load an encoder, by default that of the index, with other prefixes."""
    from hopgate.retrievers.encoders import DEFAULT_ENCODER, load_encoder
    from hopgate.retrievers.index import own_encoder
    from hopgate.retrievers.manifest import info
    from hopgate.retrievers.stores import describe_store, is_store, parse

    if encoder is None and is_store(out):
        encoder = parse(str(out)).encoder or None
    if encoder is None:
        try:
            built = describe_store(str(out)) if is_store(out) else info(out)
            encoder = own_encoder(out, built).name
        except ValueError:  # there is no index that can be read
            encoder = DEFAULT_ENCODER
    return load_encoder(encoder, query, passage)


@index_group.command("add")
@paths_argument
@index_option
@moved_option
@workers_options
@json_option
def index_add(
    paths: tuple[Path, ...],
    index: Path,
    encoder: str | None,
    workers: int | None,
    ray: str | None,
    as_json: bool,
) -> None:
    """Add files and folders to an index.

    Documents that it already has are replaced.
    """
    from hopgate import render
    from hopgate.retrievers.building import add

    with hired(workers, ray) as hands, render.stages() as progress:
        report = add(paths, index, encoder, progress, render.note, workers=hands)
    output(report, as_json, render.built)


@index_group.command("sync")
@click.argument("folder", type=FILE)
@index_option
@moved_option
@click.option("--watch", is_flag=True, help="Keep doing it after every change, until Ctrl-C.")
@json_option
def index_sync(folder: Path, index: Path, encoder: str | None, watch: bool, as_json: bool) -> None:
    """Make an index follow FOLDER.

    New files are added, changed ones replaced, and those that are gone removed; the others are not
    read. Documents from elsewhere stay. With --watch and --json, each change is a JSON document on
    a line of its own.
    """
    from hopgate import render
    from hopgate.retrievers import watching
    from hopgate.retrievers.building import sync

    if watch:
        with suppress(KeyboardInterrupt):
            watching.watch(folder, index, _Follower(folder, index, encoder, as_json).update)
        return
    with render.stages() as progress:
        report = sync(folder, index, encoder, progress, render.note)
    output(report, as_json, render.built)


@index_group.command("follow")
@click.argument("source")
@click.option("--index", required=True, type=FILE, help="Folder of the copy.")
@click.option("--watch", is_flag=True, help="Look for a new version every 5 s, until Ctrl-C.")
@json_option
def index_follow(source: str, index: Path, watch: bool, as_json: bool) -> None:
    """Copy an index that another machine builds, and its changes.

    SOURCE is its folder on shared storage, or a URL of object storage such as s3://bucket/index
    (install what fsspec needs for it, here s3fs). Only new files are copied. Readers of the copy
    get a version when all of it is there and checked. With --watch and --json, each version is a
    JSON document on a line of its own.
    """
    from hopgate import render
    from hopgate.retrievers.following import POLL_SECONDS, check_source, follow

    if not watch:
        with render.stages() as progress:
            report = follow(source, index, progress)
        output(report, as_json, render.followed)
        return

    def update(progress: "BuildProgress") -> None:
        report = follow(source, index, progress)
        if report.changed and as_json:
            print_json({"time": f"{_now().isoformat(timespec='seconds')}", **asdict(report)})
        elif report.changed:
            render.followed(report, f"{_now():%H:%M:%S} ")

    check_source(source, index)
    tries = _Tries()
    with suppress(KeyboardInterrupt):
        while True:
            tries.run(update)
            time.sleep(POLL_SECONDS)


class _Tries:
    """Updates an index again and again; an error that stays is shown once."""

    def __init__(self) -> None:
        self._error = ""

    def run(self, update: Callable[["BuildProgress"], None]) -> bool:
        """Update once; return whether it succeeded."""
        from hopgate import render
        from hopgate.cli import explain_error

        try:
            with render.stages(brief=True) as progress:
                update(progress)
        except Exception as error:
            if self._error != (text := explain_error(error)[0]):
                render.note(f"{_now():%H:%M:%S} not updated, trying again: {text}")
            self._error = text
            return False
        self._error = ""
        return True


class _Follower:
    """Keeps an index in step with a folder, and shows each change or error as one line."""

    def __init__(self, folder: Path, index: Path, encoder: str | None, as_json: bool) -> None:
        self._arguments = (folder, index, encoder)
        self._as_json = as_json
        self._skipped: list[SkippedFile] | None = None
        self._tries = _Tries()

    def update(self) -> bool:
        """Sync once; return whether it succeeded."""
        return self._tries.run(self._sync)

    def _sync(self, progress: "BuildProgress") -> None:
        from hopgate.retrievers.building import sync

        report = sync(*self._arguments, progress)
        before, self._skipped = self._skipped, report.skipped
        fresh = [each for each in report.skipped if each not in (before or [])]
        if report.changed or fresh or before is None:
            self._show(report, fresh)

    def _show(self, report: "BuildReport", skipped: "list[SkippedFile]") -> None:
        from hopgate import render

        if self._as_json:
            print_json({"time": f"{_now().isoformat(timespec='seconds')}", **asdict(report)})
        else:
            render.synced(report, f"{_now():%H:%M:%S}", skipped)


def _now() -> datetime:
    return datetime.now().astimezone()


@index_group.command("delete")
@click.argument("sources", nargs=-1)
@click.option("--id", "ids", multiple=True, help="A passage to delete, by its id; repeatable.")
@index_option
@json_option
def index_delete(
    sources: tuple[str, ...], ids: tuple[str, ...], index: Path, as_json: bool
) -> None:
    """Delete documents from an index.

    SOURCES are names of documents, or patterns such as 'reports/*'. What is deleted is no longer
    found; `hopgate index compact` frees its space on disk.
    """
    from hopgate import render
    from hopgate.retrievers.building import delete

    if not sources and not ids:
        raise click.UsageError("nothing to delete: give SOURCES, or --id")
    with render.stages() as progress:
        report = delete(index, sources, ids, progress)
    output(report, as_json, render.built)


@index_group.command("compact")
@either_folder
@json_option
def index_compact(index: Path, as_json: bool) -> None:
    """Free the space of what was deleted.

    The index is written again, in as few segments as possible.
    """
    from hopgate import render
    from hopgate.retrievers.building import compact
    from hopgate.retrievers.manifest import info, size
    from hopgate.retrievers.stores import check_folder

    check_folder(index, "compact")
    before = size(info(index))
    with render.stages() as progress:
        report = compact(index, progress, render.note)
    output(report, as_json, render.compacted, before, size(info(index)))


@index_group.command("info")
@either_folder
@json_option
def index_info(index: Path, as_json: bool) -> None:
    """Show what an index contains.

    Also which encoder it needs, and what `compact` would free. --json prints the whole manifest,
    with the files and their hashes. Of a store, every passage is listed to count them.
    """
    from hopgate import render
    from hopgate.retrievers.manifest import info
    from hopgate.retrievers.stores import describe_store, is_store

    if is_store(index):
        output(describe_store(str(index)), as_json, render.store)
    else:
        output(info(index), as_json, render.manifest, index)


@index_group.command("push")
@click.argument("source", type=FILE)
@click.argument("target", type=FILE)
@click.option(
    "--replace",
    is_flag=True,
    help="Allow this to remove most passages of TARGET, or to change its encoder.",
)
@json_option
def index_push(source: Path, target: Path, replace: bool, as_json: bool) -> None:
    """Copy an index with its vectors into a store, or back.

    SOURCE and TARGET are folders or stores. TARGET then holds what SOURCE holds, and nothing is
    encoded again. If it is interrupted, the same command resumes.
    """
    from hopgate import render
    from hopgate.retrievers.push import push

    with render.stages() as progress:
        report = push(source, target, progress, replace=replace)
    output(report, as_json, render.built)


@index_group.command("verify")
@either_folder
@moved_option
@json_option
def index_verify(index: Path, encoder: str | None, as_json: bool) -> None:
    """Check every byte of an index, and that its parts match."""
    from hopgate import render
    from hopgate.retrievers.verifying import verify

    with render.status("verifying", quiet=as_json):
        report = verify(index, encoder)
    output(report, as_json, render.verified)
    if report.problems:
        raise SystemExit(1)
