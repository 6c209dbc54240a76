"""`hopgate search`: the passages of a source, without a model."""

from collections.abc import Sequence
from typing import Annotated, Any

import click

from hopgate.commands.options import command, request_context
from hopgate.nodes.run.context import Context
from hopgate.retrievers.base import Hit
from hopgate.retrievers.filters import Condition, parse_where
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
    from hopgate.nodes.texts.text import check_question
    from hopgate.retrievers.encoding.provider import EncoderDownError
    from hopgate.retrievers.sources import open_source

    context = request_context(settings)
    ranked = context.rerank, context.where
    if not query.strip():
        raise click.UsageError("the query is empty; give some words to search for.")
    with pages.err.status("searching"):
        asked = [check_question(query)], k
        try:
            (hits,) = open_source(context.index, context.mode, *ranked).search(*asked)
        except EncoderDownError as error:
            if context.mode == "dense":
                raise
            pages.note(f"searched by words only: {error}")
            (hits,) = open_source(context.index, "bm25", *ranked).search(*asked)
    if not hits:
        pages.note(_why_none(query, context))
    pages.output(hits, _show)


def _why_none(query: str, context: Context) -> str:
    """Say whether it is the filter, or a part of it, that lets no passage through."""
    from hopgate.retrievers.sources import open_source

    def matches(*where: Condition) -> bool:
        return any(open_source(context.index, "dense", where=where).search([query], 1))

    wanted = parse_where(context.where)
    if not wanted:
        return "no passage found"
    if matches(*wanted):
        return "no passage found: the filter matches some, but none has a word of the query"
    alone = [name for name, values in wanted if not matches((name, values))]
    which = f"filter on {' or on '.join(alone)}" if alone else "whole filter"
    return f"no passage found: none fulfils the {which}"


def _show(hits: Sequence[Hit]) -> None:
    """Print passages, best first."""
    for number, hit in enumerate(hits, start=1):
        title = pages.value("title", hit["title"])
        place = f" {hit['score']:.3f}  {pages.place(hit)}".rstrip()
        pages.line((f"{number}. {title}", "bold"), (place, "dim"))
        pages.line(f"   {hit['text']}", wrap=True)
