"""`hopgate label`: which strategies answer each question, with a real model and index."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hopgate.evaluation.writing import append_lines, check_folder, write_files
from hopgate.plans import Asking, Row, asked_of, going_on, searched

if TYPE_CHECKING:
    from hopgate.common.strategies import Strategy
    from hopgate.evaluation.journal import Journal
    from hopgate.evaluation.labelling import Judge
    from hopgate.evaluation.retrievalqa import Example


def label(
    questions: Path,
    index: Path,
    out: Path,
    judge: "Judge",
    asking: Asking,
    *,
    limit: int | None = None,
    skip_bad_rows: bool = False,
) -> dict[str, Any]:
    """Asks each question with every strategy and writes a label row for it.

    A row is written as soon as its question and all before it are finished. Each answer is kept
    beside `out`, in `NAME.answers.jsonl`, so that nothing is asked twice; with another `judge`
    the same answers are judged again.

    Args:
        questions: See `hopgate.evaluation.questions.read_questions`.
        index: What is searched.
        out: JSONL to write; see `hopgate.evaluation.labelling.label_row`.
        judge: Which answers are right.
        asking: The model and how it is asked.
        limit: Ask only so many questions, the first ones.
        skip_bad_rows: Go on without rows that cannot be used.

    Returns:
        `out`, `model`, `judge`, `bad_rows`, and `hopgate.evaluation.labelling.summary` of the
        rows.

    Raises:
        ValueError: If an input is wrong, or what is there was made with other settings.
        RuntimeError: If the model fails; the message says what is kept, and where.
    """
    from hopgate.evaluation import labelling
    from hopgate.evaluation.journal import Journal
    from hopgate.evaluation.questions import read_questions
    from hopgate.evaluation.rows import data_summary
    from hopgate.models import chat

    _check_out(out, questions, asking.overwrite)
    examples, bad = read_questions(questions, skip_bad_rows)
    examples = examples[:limit]
    model = chat.resolve(asking.model)
    settings = {
        "hopgate": version("hopgate"),
        **asked_of(model),
        "data": data_summary(questions, len(examples), len(bad))["sha256"],
        "passages": searched(index),
    }
    survey = Survey(model, index)
    with Journal(_answers(out), settings, asking.overwrite, survey.fields) as journal:
        labels = Labels(out, examples, judge, journal.done)
        with labels:
            survey.ask(examples, journal, labels, asking)
    about = {"out": str(out), "model": model, "judge": judge, "bad_rows": len(bad)}
    return about | labelling.summary(labels.rows)


class Survey:
    """Every strategy on every question.

    Attributes:
        fields: Of an answer's row.
    """

    def __init__(self, model: str, index: Path) -> None:
        """Checks what will be needed.

        Raises:
            ValueError: If the model or the index is not usable.
        """
        from hopgate.evaluation.asking import WholeGraph
        from hopgate.evaluation.labelling import STRATEGIES
        from hopgate.nodes.context import Context

        self._contexts: dict[Strategy, Context] = {
            strategy: Context(model=model, index=str(index), strategy=strategy)
            for strategy in STRATEGIES
        }
        self._graph = WholeGraph()
        self.fields = self._graph.fields
        asyncio.run(self._graph.resources.check(self._contexts["none"]))

    def ask(
        self,
        examples: Sequence["Example"],
        journal: "Journal",
        labels: "Labels",
        asking: Asking,
    ) -> None:
        """Asks what the journal lacks.

        Raises:
            RuntimeError: If the model fails; the message says what is kept, and where.
        """
        from hopgate.evaluation.running import run

        units = [(each, strategy) for each in examples for strategy in self._contexts]
        waiting = [unit for unit in units if unit_id(*unit) not in journal.done]
        done = len(units) - len(waiting)

        async def act(unit: tuple["Example", "Strategy"]) -> Row:
            example, strategy = unit
            row = await self._graph.answer(example, self._contexts[strategy])
            return {**row, "id": unit_id(example, strategy)}

        def keep(row: Row) -> None:
            nonlocal done
            journal.append(row)
            labels.catch_up()
            done += 1
            asking.advance("answers", done, len(units))

        asking.advance("answers", done, len(units))
        with going_on(lambda: done, len(units), journal.path):
            asyncio.run(run(waiting, act, asking.concurrency, keep))


def unit_id(example: "Example", strategy: str) -> str:
    """The id of one strategy's answer to one question in the journal."""
    return f"{strategy}:{example.id}"


class Labels:
    """The file of labels: a row for each finished question, in order; use it as a context manager.

    Attributes:
        rows: Those written so far.

    Args:
        out: The file; what is there is replaced.
        examples: The questions.
        judge: Which answers are right.
        answers: What is finished, by `unit_id`; it may grow.
    """

    def __init__(
        self,
        out: Path,
        examples: Sequence["Example"],
        judge: "Judge",
        answers: Mapping[str, Any],
    ) -> None:
        """Touches no file yet."""
        self.rows: list[dict[str, Any]] = []
        self._out, self._examples, self._judge, self._answers = out, examples, judge, answers

    def __enter__(self) -> Self:
        """Writes what is finished.

        Raises:
            RuntimeError: If it cannot be written.
        """
        self.rows += self._finished()
        write_files(self._out.parent, {self._out.name: _lines(self.rows)})
        self._file = self._out.open("ab", buffering=0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the file."""
        self._file.close()

    def catch_up(self) -> None:
        """Writes the rows that are finished since.

        Raises:
            RuntimeError: If they cannot be written.
        """
        if rows := self._finished():
            try:
                append_lines(self._file, _lines(rows))
            except OSError as error:
                raise RuntimeError(f"{self._out} cannot be written to: {error}") from error
            self.rows += rows

    def _finished(self) -> list[dict[str, Any]]:
        """The next questions that have all their answers."""
        from hopgate.evaluation.labelling import STRATEGIES, label_row

        rows = []
        for example in self._examples[len(self.rows) :]:
            ids = {strategy: unit_id(example, strategy) for strategy in STRATEGIES}
            if not set(ids.values()) <= self._answers.keys():
                break
            answers = {strategy: self._answers[each] for strategy, each in ids.items()}
            rows.append(label_row(example, answers, self._judge))
        return rows


def _lines(rows: Sequence[Row]) -> bytes:
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    return text.encode("utf-8", "backslashreplace")  # of a lone surrogate


def _answers(out: Path) -> Path:
    """Where every answer is kept."""
    return out.with_name(f"{out.stem}.answers.jsonl")


def _check_out(out: Path, questions: Path, overwrite: bool) -> None:
    """Refuses to replace what no earlier run of the command wrote.

    Raises:
        ValueError: If `out` is a folder or a file from elsewhere.
        RuntimeError: If its folder cannot be written to.
    """
    from hopgate.evaluation.journal import settings_path

    check_folder(out.parent)
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder; name a file to write")
    for file in (out, _answers(out)):
        if file.exists() and questions.exists() and file.samefile(questions):
            raise ValueError(f"--out {out}: {file} is the file of the questions; name another")
    if not out.exists():
        return
    if not overwrite and not settings_path(_answers(out)).exists():
        raise ValueError(
            f"--out {out} is there, but {_answers(out).name} is not beside it, so this command "
            "cannot go on from it; name another file, or give --overwrite"
        )
