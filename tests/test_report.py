"""Reports: files, pages, pictures, and comparing results with a baseline."""

import copy
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text
from predictions import prediction

from hopgate.evaluation import charts
from hopgate.evaluation.published import RETRIEVALQA, SELF_RAG
from hopgate.evaluation.report import (
    Drop,
    compare,
    new_runs,
    page,
    read_results,
    results_document,
    write_report,
)
from hopgate.evaluation.runner import endpoint, model_settings
from hopgate.evaluation.scores import Price, summarise

PAPER = Path(__file__).resolve().parents[2] / "shared" / "papers" / "retrievalqa-ta-are.txt"
FILES = ["flow.png", "gates.png", "report.md", "results.json"]
SPECS = (
    "ta-are", "always", "never", "vanilla", "ta-are:date=no", "ta-are:demos=0",
    "ta-are:pool=/very/long/path/to/some/pool.jsonl,demos=4", "confidence:threshold=0.42",
    "draft:threshold=1.25,layout=turns", "vanilla:layout=turns", "draft", "confidence",
)  # fmt: skip


def entry(name: str, settings: dict[str, Any], scores: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "settings": settings, "scores": scores}


def run(name: str, right: int = 3, answerable: bool | None = None, n: int = 10) -> dict[str, Any]:
    """A run in which the first `right` of `n` questions were retrieved for and answered."""
    rows = [
        prediction(
            id=str(i), question="SECRET QUESTION", prediction="SECRET PREDICTION",
            source=("popqa", "freshqa")[i % 2], retrieve=i < right, match=i < right, em=i < right,
            f1=float(i < right), known=i % 3 > 0 or i < right,
            answerable=None if answerable is None else i % 2 == 0,
        )
        for i in range(n)
    ]  # fmt: skip
    return entry(name, {"gate": name}, summarise(rows, Price(0.15, 0.6)))


def document(*runs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    data = {"name": "data.jsonl", "sha256": "ab" * 32, "rows": 10, "bad_rows": 1}
    known: dict[str, Any] = {
        "passages": "given", "endpoint": None, "command": "hopgate eval retrievalqa --data x",
        "date": "2025-01-31", "version": "0.1.0",
    }  # fmt: skip
    return results_document(data, "local:smollm2", runs or [run("ta-are")], **(known | fields))


# The document


def test_the_document_says_what_was_run() -> None:
    found = document(run("ta-are"), run("always", 10))
    assert (found["format"], found["model"], found["date"]) == (1, "local:smollm2", "2025-01-31")
    assert found["data"] == {"name": "data.jsonl", "sha256": "ab" * 32, "rows": 10, "bad_rows": 1}
    assert [each["name"] for each in found["runs"]] == ["ta-are", "always"]
    assert found["runs"][1]["scores"]["retrieval_accuracy"] == 1


@pytest.mark.parametrize(
    ("url", "model", "shown"),
    [
        ("https://me:s3cret@example.org:8443/v1?key=s3cret", "openai:m", "example.org:8443"),
        ("http://127.0.0.1:8000/v1", "openai:m", "127.0.0.1:8000"),
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


def test_runs_need_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="each name once"):
        document(run("a"), run("a"))
    with pytest.raises(ValueError, match="at least one"):
        results_document(
            {}, "m", [], passages="given", endpoint=None, command="", date="", version=""
        )


# What is written


def test_a_report_is_four_files_without_leftovers(tmp_path: Path) -> None:
    found = document(run("ta-are"), run("never", 0))
    write_report(tmp_path / "deep" / "out", found)
    assert sorted(os.listdir(tmp_path / "deep" / "out")) == FILES
    assert read_results(tmp_path / "deep" / "out" / "results.json") == found


def test_no_text_of_the_data_is_written(tmp_path: Path) -> None:
    write_report(tmp_path, document(run("ta-are", answerable=True)))
    for name in ("results.json", "report.md"):
        assert "SECRET" not in (tmp_path / name).read_text(encoding="utf-8")


def test_a_failed_report_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(tmp_path, document())
    before = {name: (tmp_path / name).read_bytes() for name in FILES}

    def fail(results: Any) -> bytes:
        raise RuntimeError("no picture")

    monkeypatch.setattr(charts, "flow_png", fail)
    with pytest.raises(RuntimeError, match="no picture"):
        write_report(tmp_path, document(run("never", 0)))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(RuntimeError, match="out cannot be written to"):
        write_report(tmp_path / "out", document())


def test_names_that_are_not_utf_8_can_be_written_and_read(tmp_path: Path) -> None:
    write_report(tmp_path, document(run("ta-are"), command="hopgate --data \udcff.jsonl"))
    assert read_results(tmp_path / "results.json")["command"] == "hopgate --data \udcff.jsonl"
    assert "\\udcff" in (tmp_path / "report.md").read_text(encoding="utf-8")


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


def test_the_page_has_the_figures() -> None:
    text = page(document(run("ta-are"), run("always", 10), endpoint="host:1"))
    for part in ("`data.jsonl`, 10 questions, 1 bad rows", "ab" * 32, "`host:1`", "2025-01-31",
                 "hopgate 0.1.0", "`hopgate eval retrievalqa --data x`"):  # fmt: skip
        assert part in text
    header, first, second = table(text, "## Runs")
    assert len(header) == len(first) == len(second) == 8
    assert first[:5] == ["`ta-are`", "30.0 [0.0, 60.0]", "30.0 [0.0, 60.0]", "30.0", "30.0"]
    assert second[1] == "100.0 [100.0, 100.0]"
    published = table(text, "### Published")
    assert published[1] == ["TinyLlama (1.1B)", "39.1 / 14.7", "54.1 / 19.0", "100.0 / 28.2"]
    assert table(text, "## New world")[0] == ["gate", "`long-tail` (n = 5)", "`new-world` (n = 5)"]
    assert table(text, "## By source")[1] == ["`ta-are`", "20.0 / 20.0", "40.0 / 40.0"]
    assert table(text, "## Cost")[1][5:8] == ["1,100", "2.1e-05", "0.00021"]
    flow = table(text, "## Where the questions went")
    assert flow[1] == ["`ta-are`", "3", "0", "0", "0", "4", "3"]
    assert "](gates.png)" in text and "](flow.png)" in text


def test_the_page_scores_decisions_only_where_answerable_is_known() -> None:
    assert "macro" not in page(document(run("ta-are")))
    text = page(document(run("ta-are", answerable=True)))
    # truth: the odd ones; retrieved: 0, 1, 2
    assert table(text, "## The decision")[1] == [
        "`ta-are`", "10", "40.0", "38.1", "40.0", "37.5",
    ]  # fmt: skip
    assert table(text, "## By need")[1] == ["`ta-are`", "40.0 / 40.0", "20.0 / 20.0"]


def test_a_run_s_name_breaks_no_table() -> None:
    name = "ta-are:pool=a|b`c\nd"
    assert [len(row) for row in table(page(document(run(name))), "## Runs")] == [8, 8]


# Pictures


@pytest.mark.parametrize("draw", [charts.draw_gates, charts.draw_flow])
@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_texts_of_a_picture_do_not_overlap_and_are_not_cut_off(
    draw: Callable[..., Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [run(name, at * 37 % 201, n=200) for at, name in enumerate(SPECS[:count])]
    figure = draw(document(*runs))
    figure.draw_without_rendering()  # lays it out
    texts: list[Text] = []
    original = Text.draw

    def record(text: Text, renderer: Any) -> None:
        texts.append(text)
        original(text, renderer)

    monkeypatch.setattr(Text, "draw", record)
    figure.draw_without_rendering()
    seen = [each for each in texts if each.get_visible() and each.get_text().strip()]
    boxes = {each: each.get_window_extent() for each in seen}
    assert len(boxes) > 5 * count
    for text, box in boxes.items():
        assert figure.bbox.containsx(box.x0) and figure.bbox.containsx(box.x1), text
        assert figure.bbox.containsy(box.y0) and figure.bbox.containsy(box.y1), text
    for (one, box), (other, more) in itertools.combinations(boxes.items(), 2):
        assert not box.padded(-1).overlaps(more.padded(-1)), (one, other)


def test_the_gates_picture_shows_runs_and_published_figures() -> None:
    figure = charts.draw_gates(document(run("ta-are"), run("always", 10)))
    ours, _, published, _ = figure.axes
    assert [bar.get_width() for bar in ours.patches] == pytest.approx([30, 100])
    lines = {line.get_label(): list(line.get_xdata()) for line in published.get_lines()}
    assert lines["TA-ARE"] == pytest.approx([54.1, 95.5, 86.0, 86.3, 83.2])
    assert lines["always"] == [100] * 5


def test_the_gates_picture_counts_only_must_retrieve_questions() -> None:
    figure = charts.draw_gates(document(run("ta-are", answerable=True)))
    assert [bar.get_width() for bar in figure.axes[0].patches] == pytest.approx([20])
    assert "5 questions" in figure.axes[0].get_title(loc="left")


def test_questions_that_are_all_answerable_give_a_picture_too() -> None:
    rows = [prediction(answerable=True)]
    assert charts.gates_png(document(entry("a", {}, summarise(rows)))).startswith(b"\x89PNG")


def test_the_flow_s_bands_are_as_wide_as_their_counts() -> None:
    axes = charts.draw_flow(document(run("ta-are"))).axes[0]
    bands = [each for each in axes.patches if len(each.get_path().vertices) == 9]
    widths = sorted(
        float(each.get_path().vertices[4][1] - each.get_path().vertices[3][1]) for each in bands
    )
    assert widths == pytest.approx([0.3, 0.3, 0.4])
    texts = [each.get_text() for each in axes.texts]
    assert "retrieves\n3" in texts and "does not\n7" in texts
    assert "right 3\n3 + 0" in texts and "wrong 4\n0 + 4" in texts


def test_names_in_pictures_are_not_formulas_and_lose_their_folders() -> None:
    assert (
        charts.label("ta-are:pool=/a/b/pool.jsonl,demos=4") == "ta-are: pool=pool.jsonl,\ndemos=4"
    )
    assert len(charts.label("x" * 100).split("\n")) <= 2
    assert charts.flow_png(document(run("ta-are:pool=$x^$_"))).startswith(b"\x89PNG")


# Published figures


@pytest.mark.skipif(not PAPER.is_file(), reason="needs the paper in ../shared/papers")
def test_the_published_figures_are_those_of_the_paper_s_table_1() -> None:
    text = PAPER.read_text(encoding="utf-8")
    lines = text[text.index("Baselines $(1,271)$") : text.index("Table 1: Retrieval")].split("\n")
    numbers = [
        [float(each) for each in re.findall(r"(?<![+(\dGPT-])\d+\.\d", line.split("\t", 1)[1])]
        for line in lines
        if re.match(r"(\$?t ?[$=]|TinyLlama|Phi|Llama|GPT|\$GPT|\$t)", line) and "\t" in line
    ]

    def percent(*shares: float) -> list[float]:
        return [round(100 * share, 1) for share in shares]

    assert [row[:2] for row in numbers[:4]] == [percent(*each) for each in SELF_RAG.values()]
    for gates, vanilla, ta_are in zip(RETRIEVALQA, numbers[4:9], numbers[9:], strict=True):
        assert vanilla == percent(*gates.vanilla, gates.always.match)
        assert ta_are == percent(*gates.ta_are, gates.always.match)
    assert all(gates.always.retrieval == 1 for gates in RETRIEVALQA)


# Comparing


def test_equal_results_have_no_drops() -> None:
    found = document(run("ta-are"), run("always", 10))
    assert compare(found, found, 0) == []


def test_drops_beyond_the_tolerance_are_named() -> None:
    before = document(run("ta-are", 5), run("always", 10))
    after = document(run("ta-are", 4), run("always", 10))
    drops = compare(before, after, 0.02)
    assert drops[0] == Drop("ta-are", "retrieval_accuracy", 0.5, 0.4)
    assert [each.metric for each in drops] == ["retrieval_accuracy", "match", "em", "f1"]
    assert compare(before, after, 0.1) == []  # as much as allowed
    assert compare(after, before, 0) == []  # better


def test_the_decision_is_compared_where_both_have_it() -> None:
    before, after = (document(run("ta-are", right, True)) for right in (10, 0))
    before["runs"][0]["scores"]["decision"]["f1"] = 0.9
    assert "decision_f1" in [each.metric for each in compare(before, after, 0.02)]
    for side in (before, after):
        other = copy.deepcopy(side)
        other["runs"][0]["scores"]["decision"] = None
        pair = (other, after) if side is before else (before, other)
        assert "decision_f1" not in [each.metric for each in compare(*pair, 0.02)]


def test_a_missing_run_is_refused_and_a_new_one_is_named() -> None:
    both, one = document(run("ta-are"), run("always")), document(run("ta-are"))
    with pytest.raises(ValueError, match="missing now: always"):
        compare(both, one, 0.02)
    assert compare(one, both, 0.02) == []
    assert new_runs(one, both) == ["always"]
    assert new_runs(both, one) == []


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda d: d["data"].update(sha256="cd" * 32), ["other questions", "sha256", "cdcd"]),
        (lambda d: d["data"].update(rows=9), ["other questions", "rows", "is 9"]),
        (lambda d: d.update(format=2), ["baseline", "format 1", "is 2"]),
        (lambda d: d.pop("format"), ["baseline", "is None"]),
        (lambda d: d.pop("data"), ["baseline is incomplete", "'data'"]),
        (lambda d: d["data"].pop("rows"), ["'rows'"]),
        (lambda d: d.update(runs=3), ["baseline is incomplete"]),
        (lambda d: d["runs"][0].pop("scores"), ["'scores'"]),
        (lambda d: d["runs"][0]["scores"].pop("match"), ["'match'"]),
        (lambda d: d["runs"][0]["scores"].update(match="high"), ["match, which is 'high'"]),
        (lambda d: d["runs"][0]["scores"].update(em=float("nan")), ["em, which is nan"]),
        (lambda d: d["runs"][0]["scores"].update(f1=None), ["f1, which is None"]),
    ],
)  # fmt: skip
def test_a_baseline_that_cannot_be_compared_is_refused(
    change: Callable[[dict[str, Any]], Any], parts: list[str]
) -> None:
    before, after = document(), document()
    change(before)
    with pytest.raises(ValueError) as caught:
        compare(before, after, 0.02)
    assert all(part in str(caught.value) for part in parts), caught.value


@pytest.mark.parametrize("tolerance", [-0.1, 1.5, float("nan")])
def test_a_tolerance_out_of_range_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match="--tolerance"):
        compare(document(), document(), tolerance)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"', "{}", "[" * 100_000])
def test_a_file_without_results_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"baseline .*results\.json"):
        read_results(path)


def test_a_missing_baseline_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.json"):
        read_results(tmp_path / "nowhere.json")
