"""`hopgate label`: which strategies answer each question, with a real model and index.

The rows have the shape of Flare-Aug's released labels (`hopgate.classifiers.labels`), plus what
each strategy answered and used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hopgate.common.files import json_line, sha256
from hopgate.common.strategies import FLARE_NAME_OF, LABEL_OF, STRATEGIES, Strategy
from hopgate.evaluation.learning import silver
from hopgate.evaluation.learning.silver import MIN_CONFIDENCE, Answers
from hopgate.evaluation.measuring.datasets import Example, read_examples
from hopgate.evaluation.measuring.harness import WholeGraph
from hopgate.evaluation.measuring.journal import settings_path
from hopgate.evaluation.measuring.runner import Job, execute, index_identity, make_run
from hopgate.evaluation.measuring.scores import Answered, mean
from hopgate.evaluation.measuring.specs import Variant
from hopgate.evaluation.reports.output import check_folder, write_files
from hopgate.models import chat
from hopgate.nodes.run.context import Context
from hopgate.retrievers.sources import AUTO, open_source

Judge = Literal["em", "match", "silver"]
"""Which answers are correct. `em`: those that equal an accepted one, both normalised, as in
Flare-Aug; `match`: those that contain one; `silver`: those that agree with the best-supported one
(`silver.py`), or contain an accepted one if the question has any. "I don't know" is never correct.
"""
UNANSWERED = "unanswered"
_SEARCHED = 20
"""Questions whose passages tell how long prompts are."""
_PROMPT = 300
"""Tokens of a call besides its passages, by the bill of docs/results/pipeline."""
_CHARACTERS = 4
"""Of a token."""


def label(
    questions: Path,
    index: Path,
    out: Path,
    judge: Judge,
    job: Job,
    *,
    limit: int | None = None,
) -> dict[str, Any]:
    """Answer each question with every strategy and write a label row for it.

    Each answer is saved beside `out` at once, in `NAME.answers.jsonl`, so that nothing is asked
    twice; with another judge the same answers are judged again. The rows are written at the end.

    Args:
        questions: See `datasets.read_examples`; `silver` needs no answers.
        index: The index to search.
        out: JSONL to write; see `make_label`.
        judge: Which answers are correct.
        job: The command's options.
        limit: Use only the first so many questions.

    Returns:
        `out`, `model`, `judge`, `unclear` (rows left out for their confidence), and the `summary`
        of the rows.

    Raises:
        ValueError: An input is wrong, earlier answers were made with other settings, or `silver`
            has nothing to go by: one strategy alone gave answers, or no row is clear enough.
        RuntimeError: The model failed; the message says where the answers are saved.
    """
    _check_out(out, questions, job.overwrite)
    silvery = judge == "silver"
    examples = read_examples(questions, answers_needed=not silvery)[:limit]
    data = {"data": sha256(questions), "passages": index_identity(index)}
    job = replace(job, settings={**job.settings, "index": str(index)})
    run = make_run(Variant("answers", {}), answers_of(out), job, data)
    items = {_answer_id(each, name): (each, name) for each in examples for name in STRATEGIES}
    (given,) = execute([run], items, _EachStrategy(), job, run.path)
    left = iter(given)
    answers = {each.id: {name: next(left) for name in STRATEGIES} for each in examples}
    every = [make_label(each, answers[each.id], judge) for each in examples]
    rows = [row for row in every if row.get("confidence", 1.0) >= MIN_CONFIDENCE]
    write_files(out.parent, {out.name: b"".join(map(json_line, rows))})
    if silvery:
        _check_silver(given, examples, len(rows))
    return {
        "out": str(out),
        "model": job.model,
        "judge": judge,
        "unclear": len(every) - len(rows),
        **summary(rows),
    }


def plan(
    questions: Path, index: Path, out: Path, judge: Judge, job: Job, *, limit: int | None = None
) -> dict[str, Any]:
    """Make the checks of `label` that need no model, and reckon what it would ask.

    The tokens are reckoned from the passages that some of the questions find, four characters to a
    token. Saved answers are not taken away.

    Returns:
        `questions`; `calls` and `tokens`, each [least, most]: with one hop of the loop and with
        `max_hops`.

    Raises:
        ValueError: See `label`.
    """
    _check_out(out, questions, job.overwrite)
    examples = read_examples(questions, answers_needed=judge != "silver")[:limit]
    context = Context(**{**job.settings, "index": str(index)})
    some = [each.question for each in examples[:_SEARCHED]]
    mode = AUTO if ":" in str(index) else "bm25"  # without an encoder, which may be a provider's
    found = open_source(str(index), mode).search(some, context.top_k)
    each = sum(len(hit["text"]) for hits in found for hit in hits) / len(some)
    most = chat.evidence_chars(job.model)
    calls, tokens = [], []
    for hops in (1, context.max_hops):
        shown = [0, 1, *range(1, hops + 1), hops]  # searches whose passages a call reads
        calls.append(len(examples) * len(shown))
        read = sum(min(most, searches * each) for searches in shown) / _CHARACTERS
        tokens.append(len(examples) * round(_PROMPT * len(shown) + read))
    return {"questions": len(examples), "calls": calls, "tokens": tokens}


def _check_silver(answers: Sequence[Answered], examples: Sequence[Example], clear: int) -> None:
    """Raise ValueError where labels rest on nothing: one voice alone, or no row is clear enough."""
    saying = {each["id"].partition(":")[0] for each in answers if each["known"]}
    if len(saying) == 1 and not all(each.golds for each in examples):
        raise ValueError(
            f"only the strategy {saying.pop()} gave any answer, so there is nothing for it to "
            "agree with; use another model, or questions with accepted answers and --judge match"
        )
    if not clear:
        raise ValueError(
            f"none of {len(examples)} questions has an answer that another one, or a passage, "
            "supports; give more questions"
        )


def make_label(example: Example, answers: Answers, judge: Judge) -> dict[str, Any]:
    """Return a question's label row.

    Args:
        example: The question.
        answers: The answer of each strategy.
        judge: Which answers are correct.

    Returns:
        `id`, `question`, `dataset` if known, `correct` (by the names of Flare-Aug), `label` (None
        if no strategy was correct), with `silver` also `confidence` (see
        `silver.Judgement`; 1 if the question has accepted answers), `answered`
        (the strategies that did not say "I don't know"), and by the same names: `answers`, `steps`
        (retrievals), `calls` (of the model), `tokens` (`prompt` and `completion`) and `ms`.
    """

    def by_name(part: Callable[[Answered], Any]) -> dict[str, Any]:
        return {FLARE_NAME_OF[name]: part(answers[name]) for name in STRATEGIES}

    known = [name for name in STRATEGIES if answers[name]["known"]]
    if judge == "silver" and not example.golds:
        correct, sure = silver.judge(example.question, answers)
        confidence = {"confidence": round(sure, 3)}
    else:
        rule = "match" if judge == "silver" else judge
        correct = tuple(name for name in known if answers[name][rule])
        confidence = {"confidence": 1.0} if judge == "silver" else {}
    return {
        "id": example.id,
        "question": example.question,
        **({"dataset": example.source} if example.source else {}),
        "correct": [FLARE_NAME_OF[name] for name in correct],
        "label": LABEL_OF[correct[0]] if correct else None,
        **confidence,
        "answered": [FLARE_NAME_OF[name] for name in known],
        "answers": by_name(lambda answer: answer["prediction"]),
        "steps": by_name(lambda answer: answer["retrieval_steps"]),
        "calls": by_name(lambda answer: answer["llm_calls"]),
        "tokens": by_name(
            lambda answer: {
                "prompt": answer["prompt_tokens"],
                "completion": answer["completion_tokens"],
            }
        ),
        "ms": by_name(lambda answer: answer["ms"]),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise label rows.

    Returns:
        `questions`; `cheapest`, how many questions each strategy is the cheapest correct one for,
        and how many are `unanswered`; and by strategy `accuracy` and the means of `steps`,
        `calls` and `ms` per question.
    """
    cheapest = Counter(row["label"] for row in rows)

    def means(part: Callable[[Mapping[str, Any], str], float]) -> dict[str, float]:
        return {name: mean([part(row, FLARE_NAME_OF[name]) for row in rows]) for name in STRATEGIES}

    return {
        "questions": len(rows),
        "cheapest": {name: cheapest[LABEL_OF[name]] for name in STRATEGIES}
        | {UNANSWERED: cheapest[None]},
        "accuracy": means(lambda row, name: name in row["correct"]),
        "steps": means(lambda row, name: row["steps"][name]),
        "calls": means(lambda row, name: row["calls"][name]),
        "ms": means(lambda row, name: row["ms"][name]),
    }


def _answer_id(example: Example, strategy: Strategy) -> str:
    """Return the id that one strategy's answer has in the journal."""
    return f"{strategy}:{example.id}"


class _EachStrategy:
    """The whole graph with a forced strategy."""

    def __init__(self) -> None:
        self._graph = WholeGraph()

    async def check(self, context: Context) -> None:
        await self._graph.check(_forced(context, "none"))  # with a strategy, no router is loaded

    async def load(self, context: Context) -> None:
        await self._graph.load(_forced(context, "multi"))

    async def ask(self, item: tuple[Example, Strategy], context: Context) -> Answered:
        example, strategy = item
        row = await self._graph.ask(example, _forced(context, strategy))
        row["id"] = _answer_id(example, strategy)
        return row


def _forced(context: Context, strategy: Strategy) -> Context:
    return context.model_copy(update={"strategy": strategy})


def answers_of(out: Path) -> Path:
    """Return where the answers are saved that a file of labels is made from."""
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
    answers = answers_of(out)
    for file in (out, answers):
        if file.exists() and questions.exists() and file.samefile(questions):
            raise ValueError(f"--out {out}: {file} is the file of questions; use another name")
    if out.exists() and not overwrite and not settings_path(answers).exists():
        raise ValueError(
            f"--out {out} exists, but {answers.name} is not beside it, so this command cannot "
            "resume it; use another name, or --overwrite"
        )
