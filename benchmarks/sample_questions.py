"""The sample collection's questions, with their answers and the strategy each one needs."""

import json
from typing import Any

from hopgate.retrievers.sources import sample_path


def read_questions() -> list[dict[str, Any]]:
    """Read the rows, in file order."""
    lines = sample_path().with_name("questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
