"""The results document of every evaluation, and its files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hopgate.common.files import json_bytes
from hopgate.evaluation.reports import pictures
from hopgate.evaluation.reports.drawing import to_png
from hopgate.evaluation.reports.output import write_files
from hopgate.evaluation.reports.pages import render

FORMAT = 1
DOCUMENT, PAGE = "results.json", "report.md"
RETRIEVALQA, QA = "retrievalqa", "qa"
"""The evaluations, named after the commands that run them."""
PICTURES = {
    RETRIEVALQA: ("gates.png", pictures.draw_gates),
    QA: ("qa.png", pictures.draw_qa),
}


def results_document(**fields: Any) -> dict[str, Any]:
    """Return the content of a results file: plain JSON, without questions or passages.

    Args:
        fields: `benchmark` (`RETRIEVALQA` or `QA`), `data` (name, hash and size of the file of
            questions), `model` (its full name), `passages` (`given`, or the index), `endpoint`
            (host and port of the model's server; None: the embedded one), `command` (the command
            line) and `runs`, each with a unique `name`, its `settings` and its `scores`.
    """
    about = {"date": date.today().isoformat(), "version": version("hopgate")}
    return {"format": FORMAT, **about, **fields}


def write_report(out: Path, results: Mapping[str, Any]) -> None:
    """Write the results document, its page and its picture, each whole or not at all.

    Args:
        out: Folder to write to; it is created if needed.
        results: See `results_document`.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    picture, draw = PICTURES[results["benchmark"]]
    page = render("report.md.jinja", **results).encode()
    write_files(out, {picture: to_png(draw(results)), PAGE: page, DOCUMENT: json_bytes(results)})
