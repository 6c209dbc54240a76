"""Reports: files, pages and pictures."""

import itertools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from matplotlib.text import Text
from predictions import prediction

from hopgate.evaluation.measuring.runner import endpoint, model_settings
from hopgate.evaluation.measuring.scores import summarise
from hopgate.evaluation.reports import pictures, results
from hopgate.evaluation.reports.drawing import to_png
from hopgate.evaluation.reports.pages import render
from hopgate.evaluation.reports.results import results_document, write_report

ROOT = Path(__file__).resolve().parents[1]
FILES = ["gates.png", "report.md", "results.json"]
SPECS = (
    "ta-are", "always", "never", "vanilla", "ta-are:date=no", "ta-are:demos=0",
    "ta-are:pool=/very/long/path/to/some/pool.jsonl,demos=4", "confidence:threshold=0.42",
    "draft:threshold=1.25,layout=turns", "vanilla:layout=turns", "draft", "confidence",
)  # fmt: skip


def entry(name: str, settings: dict[str, Any], scores: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "settings": settings, "scores": scores}


def run(
    name: str, right: int = 3, answerable: bool | None = None, n: int = 10, source: str = "popqa"
) -> dict[str, Any]:
    """A run in which the first `right` of `n` questions were retrieved for and answered."""
    rows = [
        prediction(
            id=str(i), question="SECRET QUESTION", prediction="SECRET PREDICTION",
            source=(source, "freshqa")[i % 2], retrieve=i < right, match=i < right, em=i < right,
            f1=float(i < right), known=i % 3 > 0 or i < right,
            answerable=None if answerable is None else i % 2 == 0,
        )
        for i in range(n)
    ]  # fmt: skip
    return entry(name, {"gate": name}, summarise(rows))


def document(*runs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    data = {"name": "data.jsonl", "sha256": "ab" * 32, "rows": 10}
    known: dict[str, Any] = {
        "benchmark": results.RETRIEVALQA, "data": data, "model": "local:smollm2",
        "passages": "given", "endpoint": None, "command": "hopgate eval retrievalqa --data x",
        "runs": [*runs] or [run("ta-are")],
    }  # fmt: skip
    return results_document(**known | fields)


def page(found: dict[str, Any]) -> str:
    return render("report.md.jinja", **found)


# The document


@pytest.mark.parametrize(
    ("url", "model", "shown"),
    [
        ("https://me:s3cret@example.org:8443/v1?key=s3cret", "openai:m", "example.org:8443"),
        ("", "openai:m", "api.openai.com"),
        ("http://127.0.0.1:8000/v1", "local:smollm2", None),
    ],
)
def test_only_host_and_port_of_the_endpoint_are_saved(
    monkeypatch: pytest.MonkeyPatch, url: str, model: str, shown: str | None
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    assert endpoint(model) == shown
    assert model_settings(model) == {"model": model, **({"endpoint": shown} if shown else {})}


# What is written


def test_a_report_is_three_files_and_a_failed_one_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "deep" / "out"
    found = document(run("ta-are", answerable=True), command="hopgate --data \udcff.jsonl")
    write_report(out, found)
    assert sorted(os.listdir(out)) == FILES
    assert json.loads((out / "results.json").read_bytes()) == found
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert b"\\udcff" in before["report.md"]
    assert b"SECRET" not in before["results.json"] + before["report.md"]
    monkeypatch.setattr(results, "render", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(out, document(run("never", 0)))
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("name", ["retrievalqa", "pipeline"])
def test_the_published_pages_are_those_of_their_documents(name: str) -> None:
    folder = ROOT / "docs" / "results" / name
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    found = {"benchmark": "retrievalqa"} | found
    assert page(found) == (folder / "report.md").read_text(encoding="utf-8")


def table(text: str, title: str) -> list[list[str]]:
    """The cells of the first table after a title, without the line of dashes."""
    lines = text[text.index(title) :].split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return [rows[0], *rows[2:]]


def test_the_page_scores_decisions_only_where_answerable_is_known() -> None:
    assert "macro" not in page(document(run("ta-are")))
    text = page(document(run("ta-are", answerable=True)))
    # truth: the odd ones; retrieved: 0, 1, 2
    assert table(text, "## The decision")[1] == [
        "`ta-are`", "10", "40.0", "38.1", "40.0", "37.5",
    ]  # fmt: skip
    assert table(text, "## By need")[1] == ["`ta-are`", "40.0 / 40.0", "20.0 / 20.0"]
    assert table(text, "## Cost")[1][5] == "1,100"


EVIL = "a|b`c\nd](http://x)<img src=x>**b** _x_ <!-- c --> \x1b[2J\u202eX # h"


def test_names_of_runs_and_sources_break_no_table() -> None:
    text = page(document(run(EVIL, source=EVIL)))
    assert [len(row) for row in table(text, "## Runs")] == [8, 8]
    assert [len(row) for row in table(text, "## By source")] == [3, 3]
    assert all(character.isprintable() or character == "\n" for character in text)
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert not re.search("<(img src=x|!--|a |em|strong)", html)


# Pictures


def sweep_document() -> dict[str, Any]:
    file = ROOT / "docs" / "results" / "router" / "sweep.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def gates_document(count: int) -> dict[str, Any]:
    return document(*(run(name, at * 37 % 201, n=200) for at, name in enumerate(SPECS[:count])))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: pictures.draw_gates(gates_document(12)),
        lambda: pictures.draw_sweep(sweep_document()),
    ],
    ids=["gates", "sweep"],
)
def test_texts_of_a_picture_do_not_overlap_and_are_not_cut_off(
    draw: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = draw()
    to_png(figure)  # lays it out
    texts: list[Text] = []
    original = Text.draw

    def record(text: Text, renderer: Any) -> None:
        texts.append(text)
        original(text, renderer)

    monkeypatch.setattr(Text, "draw", record)
    figure.draw_without_rendering()
    seen = [each for each in texts if each.get_visible() and each.get_text().strip()]
    boxes = {each: Text.get_window_extent(each) for each in seen}
    assert len(boxes) > 12
    for text, box in boxes.items():
        assert figure.bbox.containsx(box.x0) and figure.bbox.containsx(box.x1), text
        assert figure.bbox.containsy(box.y0) and figure.bbox.containsy(box.y1), text
    for (one, box), (other, more) in itertools.combinations(boxes.items(), 2):
        assert not box.padded(-1).overlaps(more.padded(-1)), (one, other)


def test_the_gates_picture_counts_only_must_retrieve_questions() -> None:
    axes = pictures.draw_gates(document(run("ta-are", answerable=True))).axes[0]
    line = next(each for each in axes.get_lines() if each.get_label() == "ta-are")
    assert [*line.get_xdata(), *line.get_ydata()] == pytest.approx([20, 20])
    assert "5 questions" in axes.get_title(loc="left")


def test_names_in_pictures_are_not_formulas_and_lose_their_folders() -> None:
    shown = pictures.run_label("ta-are:pool=/a/b/pool.jsonl,demos=4")
    assert shown == "ta-are: pool=pool.jsonl,\ndemos=4"
    assert len(pictures.run_label("x" * 100).split("\n")) <= 2
    rows = [prediction(answerable=True)]
    to_png(pictures.draw_gates(document(entry("a", {}, summarise(rows)))))


# Published figures


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import published

    return published


def test_published_results_are_drawn_beside_ours(
    published: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found, picture in ((sweep_document(), "sweep.png"), (gates_document(2), "gates.png")):
        file = tmp_path / "any.json"
        file.write_text(json.dumps(found))
        monkeypatch.setattr("sys.argv", ["published.py", str(file)])
        published.main()
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    points = {each.label: each.points for each in published.sweep_series("flan-t5-xl")}
    assert points["Flare-Aug, published"][2] == pytest.approx((220 / 4.7, 43.9 / 0.437))
    assert points["MBA-RAG, published"] == [pytest.approx((180 / 4.7, 43.57 / 0.437))]
