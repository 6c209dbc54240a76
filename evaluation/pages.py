"""Building blocks of report pages: Markdown that no name or path of a run can break."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def what_was_run(results: Mapping[str, Any]) -> str:
    """Return data, passages, model, date and command, as a list."""
    data = results["data"]
    endpoint = code(results["endpoint"]) if results["endpoint"] else "embedded"
    return "\n".join(
        [
            f"- Data: {code(data['name'])}, {data['rows']:,} questions, {data['bad_rows']:,} bad "
            f"rows left out, SHA-256 `{data['sha256']}`",
            f"- Passages: {code(results['passages'])}",
            f"- Model: {code(results['model'])}, endpoint: {endpoint}",
            f"- Date: {results['date']}, hopgate {results['version']}",
            f"- Command: {code(results['command'])}",
        ]
    )


def costs(runs: Sequence[Mapping[str, Any]], kind: str) -> str:
    """Return what each run used per question; `kind` is the heading of the names of the runs."""
    header = (
        kind, "retrievals", "calls", "prompt tokens", "completion tokens", "total tokens",
        "cost", "total cost", "ms, mean", "ms, p50", "ms, p95",
    )  # fmt: skip
    return table(header, ([code(run["name"]), *_costs(run["scores"])] for run in runs))


def _costs(scores: Mapping[str, Any]) -> list[str]:
    tokens, cost, ms = scores["tokens"], scores["cost"], scores["ms"]
    each = tokens["per_question"]
    return [
        f"{scores['retrieval_steps']:.2f}",
        f"{scores['llm_calls']:.2f}",
        f"{each['prompt']:.1f}",
        f"{each['completion']:.1f}",
        f"{tokens['total']:,}",
        *(f"{cost[name]:.4g}" if cost else "–" for name in ("per_question", "total")),
        *(f"{ms[name]:,.0f}" for name in ("mean", "p50", "p95")),
    ]


def settings(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the settings of each run, as a list."""
    return "\n".join(f"- {code(run['name'])}: {_settings(run['settings'])}" for run in runs)


def _settings(given: Mapping[str, Any]) -> str:
    return code(json.dumps(given, ensure_ascii=False)) if given else "defaults"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a first column of names and others of numbers."""
    align = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, align, *rows))


def percent(value: float | None, interval: Sequence[float] | None = None) -> str:
    """Return a share in percent, with its interval if there is one; a dash for None."""
    if value is None or not math.isfinite(value):
        return "–"
    around = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
    return f"{100 * value:.1f}{around}"


def code(text: str) -> str:
    """Return untrusted text as code that cannot break a line or a table, or act as markup."""
    text = text.encode(errors="backslashreplace").decode()  # a path that is not UTF-8
    visible = "".join(each if each.isprintable() else " " for each in text)
    line = " ".join(visible.split()).replace("|", "\\|").replace("`", "ˋ")
    return f"`{line}`"
