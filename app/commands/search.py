"""`hopgate search`: the passages of a source, without a model."""

from collections.abc import Sequence
from typing import Annotated, Any

import click

from hopgate.commands.options import command, request_context
from hopgate.retrievers.base import Hit
from hopgate.terminal import pages


@command(context=("index", "mode", "where", "rerank"))
def search(
    query: str, /, *, k: Annotated[int, {"names": ["-k"]}] = 5, settings: dict[str, Any]
) -> None:
    """Search an index, or another source that --index names, without asking a model.

    Args:
        query: What to search for.
        k: Maximum number of passages to show.
        settings: Fields of `Context`.
    """
    from hopgate.nodes.run.resources import search_index
    from hopgate.nodes.texts.text import check_question
    from hopgate.retrievers.sources import open_source

    context = request_context(settings)
    if not query.strip():
        raise click.UsageError("the query is empty; give some words to search for.")
    with pages.err.status("searching"):
        found = search_index(
            lambda mode: open_source(context.index, mode, context.rerank, context.where),
            context.mode,
            [check_question(query)],
            k,
        )
    if found[0].warning:
        pages.note(found[0].warning)
    hits = found[0].hits
    pages.output(hits, _show)


def _show(hits: Sequence[Hit]) -> None:
    """Print passages, best first."""
    for number, hit in enumerate(hits, start=1):
        title = pages.value("title", hit["title"])
        place = f" {hit['score']:.3f}  {pages.place(hit)}".rstrip()
        pages.line((f"{number}. {title}", "bold"), (place, "dim"))
        pages.line(f"   {hit['text']}", wrap=True)
