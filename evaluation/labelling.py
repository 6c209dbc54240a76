"""`hopgate label`: which strategies answer each question, with a real model and index.

The rows have the shape of Flare-Aug's released labels (`hopgate.classifiers.labels`), plus what
each strategy answered and used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hopgate.common.files import json_line
from hopgate.common.strategies import FLARE_NAME_OF, LABEL_OF, STRATEGIES, Strategy
from hopgate.evaluation.datasets import Example, data_summary, read_examples
from hopgate.evaluation.harness import Answered, WholeGraph
from hopgate.evaluation.journal import settings_path
from hopgate.evaluation.output import append_lines, check_folder, write_files
from hopgate.evaluation.remote import Remote
from hopgate.evaluation.runner import Job, Row, execute, index_identity, make_run
from hopgate.evaluation.scores import mean
from hopgate.nodes.context import Context

Judge = Literal["em", "match"]
UNANSWERED = "unanswered"


def label(
    questions: Path,
    index: Path,
    out: Path,
    judge: Judge,
    job: Job,
    *,
    limit: int | None = None,
    skip_bad_rows: bool = False,
) -> dict[str, Any]:
    """Answer each question with every strategy and write a label row for it.

    A row is written as soon as its question and all before it are finished. Each answer is saved
    beside `out`, in `NAME.answers.jsonl`, so that nothing is asked twice; with another `judge`
    the same answers are judged again.

    Args:
        questions: See `hopgate.evaluation.datasets.read_examples`.
        index: The index to search.
        out: JSONL to write; see `label_row`.
        judge: Which answers are correct.
        job: The command's options.
        limit: Use only the first so many questions.
        skip_bad_rows: Leave out rows that cannot be used.

    Returns:
        `out`, `model`, `judge`, `bad_rows`, and the `summary` of the rows.

    Raises:
        ValueError: An input is wrong, or earlier answers were made with other settings.
        RuntimeError: The model failed; the message says what is saved where.
    """
    _check_out(out, questions, job.overwrite)
    examples, bad = read_examples(questions, skip_bad_rows)
    examples = examples[:limit]
    data = {
        "data": data_summary(questions, len(examples), len(bad))["sha256"],
        "passages": index_identity(index),
    }
    job = replace(job, settings={**job.settings, "index": str(index)})
    run = make_run("answers", _answers_path(out), job, data)
    file = LabelFile(out, examples, judge)
    items = {answer_id(each, name): (each, name) for each in examples for name in STRATEGIES}
    execute([run], items, _EachStrategy(), job, run.path, file.update)
    about = {"out": str(out), "model": job.model, "judge": judge, "bad_rows": len(bad)}
    return about | summary(file.rows)


def label_row(
    example: Example, answers: Mapping[Strategy, Answered], judge: Judge
) -> dict[str, Any]:
    """Return a question's label row.

    Args:
        example: The question.
        answers: The answer of each strategy.
        judge: Which answers are correct. `em`: those that equal an accepted one, both normalised,
            as in Flare-Aug; `match`: those that contain one. "I don't know" is never correct.

    Returns:
        `id`, `question`, `dataset` if known, `correct` (by the names of Flare-Aug), `label` (None
        if no strategy was correct), and by the same names: `answers`, `steps` (retrievals),
        `calls` (of the model), `tokens` (`prompt` and `completion`) and `ms`.
    """
    by_name = {FLARE_NAME_OF[strategy]: answers[strategy] for strategy in STRATEGIES}
    correct = [name for name in STRATEGIES if answers[name]["known"] and answers[name][judge]]
    return {
        "id": example.id,
        "question": example.question,
        **({"dataset": example.source} if example.source else {}),
        "correct": [FLARE_NAME_OF[name] for name in correct],
        "label": LABEL_OF[correct[0]] if correct else None,
        "answers": {name: answer["prediction"] for name, answer in by_name.items()},
        "steps": {name: answer["retrieval_steps"] for name, answer in by_name.items()},
        "calls": {name: answer["llm_calls"] for name, answer in by_name.items()},
        "tokens": {
            name: {"prompt": answer["prompt_tokens"], "completion": answer["completion_tokens"]}
            for name, answer in by_name.items()
        },
        "ms": {name: answer["ms"] for name, answer in by_name.items()},
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise label rows.

    Returns:
        `questions`; `cheapest`, how many questions each strategy is the cheapest correct one for,
        and how many are `unanswered`; and by strategy `accuracy` and the means of `steps`,
        `calls` and `ms` per question.
    """
    cheapest = Counter(row["label"] for row in rows)
    return {
        "questions": len(rows),
        "cheapest": {name: cheapest[LABEL_OF[name]] for name in STRATEGIES}
        | {UNANSWERED: cheapest[None]},
        "accuracy": {
            name: mean([FLARE_NAME_OF[name] in row["correct"] for row in rows])
            for name in STRATEGIES
        },
        **{
            field: {
                name: mean([row[field][FLARE_NAME_OF[name]] for row in rows]) for name in STRATEGIES
            }
            for field in ("steps", "calls", "ms")
        },
    }


def answer_id(example: Example, strategy: Strategy) -> str:
    """Return the id that one strategy's answer has in the journal."""
    return f"{strategy}:{example.id}"


class _EachStrategy:
    """The whole graph with a forced strategy."""

    remote = Remote(f"{__name__}:_EachStrategy", (), tuple[Example, Strategy])

    def __init__(self) -> None:
        self._graph = WholeGraph()
        self.fields = self._graph.fields

    async def check(self, context: Context) -> None:
        # With a strategy, no router is loaded.
        await self._graph.check(replace(context, strategy=STRATEGIES[0]))

    async def ask(self, item: tuple[Example, Strategy], context: Context) -> Row:
        example, strategy = item
        row = await self._graph.ask(example, replace(context, strategy=strategy))
        return {**row, "id": answer_id(example, strategy)}


class LabelFile:
    """The file of labels: a row for each finished question, in order.

    Attributes:
        rows: Those written so far.

    Args:
        path: The file; it is replaced by the first update.
        examples: The questions.
        judge: Which answers are correct.
    """

    def __init__(self, path: Path, examples: Sequence[Example], judge: Judge) -> None:
        """Touch no file yet."""
        self.rows: list[dict[str, Any]] = []
        self._path, self._examples, self._judge = path, examples, judge
        self._started = False

    def update(self, answers: Mapping[str, Any]) -> None:
        """Write the rows of the questions that are finished now.

        Args:
            answers: What is finished so far, by `answer_id`.

        Raises:
            RuntimeError: They cannot be written.
        """
        rows = self._finished(answers)
        lines = b"".join(map(json_line, rows))
        if not self._started:
            write_files(self._path.parent, {self._path.name: lines})
            self._started = True
        elif rows:
            try:
                with self._path.open("ab", buffering=0) as file:
                    append_lines(file, lines)
            except OSError as error:
                raise RuntimeError(f"{self._path} cannot be written to: {error}") from error
        self.rows += rows

    def _finished(self, answers: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows = []
        for example in self._examples[len(self.rows) :]:
            ids = {strategy: answer_id(example, strategy) for strategy in STRATEGIES}
            if not set(ids.values()) <= answers.keys():
                break
            found = {strategy: answers[each] for strategy, each in ids.items()}
            rows.append(label_row(example, found, self._judge))
        return rows


def _answers_path(out: Path) -> Path:
    return out.with_name(f"{out.stem}.answers.jsonl")


def _check_out(out: Path, questions: Path, overwrite: bool) -> None:
    """Refuse to replace a file that no earlier run of the command wrote.

    Raises:
        ValueError: `out` is a folder or a file from elsewhere.
        RuntimeError: Its folder is not writable.
    """
    check_folder(out.parent)
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder; name a file to write")
    answers = _answers_path(out)
    for file in (out, answers):
        if file.exists() and questions.exists() and file.samefile(questions):
            raise ValueError(f"--out {out}: {file} is the file of questions; use another name")
    if out.exists() and not overwrite and not settings_path(answers).exists():
        raise ValueError(
            f"--out {out} exists, but {answers.name} is not beside it, so this command cannot "
            "resume it; use another name, or --overwrite"
        )
