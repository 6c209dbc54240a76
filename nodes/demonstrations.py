"""The gate's demonstrations: the shipped ones, or those of a pool nearest to the question.

RetrievalQA, section 4: two Yes questions by sentence similarity, from those that the model
answered wrongly, and two No questions written by hand. The paper's encoder is SimCSE; here it
is the embedded one.
"""

import hashlib
import io
import json
import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from hopgate.nodes import folders, prompts
from hopgate.nodes.condense import check_question
from hopgate.nodes.prompts import Demo
from hopgate.nodes.text import normalise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

log = logging.getLogger(__name__)

YES, NO = "[Yes]", "[No]"
# The authors' two first.
_NO_DEMOS = tuple(
    dict.fromkeys(d for d in (*prompts.GATE_DEMOS, *prompts.CONFIDENCE_DEMOS) if d.said == NO)
)
_STRATEGIES = frozenset(("zero", "one", "multiple"))


class Labelled(NamedTuple):
    """A question, and whether it needs retrieval."""

    question: str
    retrieve: bool


def fixed(count: int) -> tuple[Demo, ...]:
    """Return the shipped demonstrations: the authors' four, or, of more, the first of the twelve.

    Args:
        count: How many, an even number up to 12; No and Yes take turns.
    """
    four = prompts.GATE_DEMOS
    return four[:count] if count <= len(four) else prompts.CONFIDENCE_DEMOS[:count]


def read_pool(path: Path) -> list[Labelled]:
    """Read labelled questions from a JSONL file; a row is one of three.

    - `question` and `answer`, Yes or No in any case, brackets allowed: written by hand.
    - `question` and `correct`, the strategies that answered it (`hopgate label`): it needs
      retrieval unless `zero` is among them.
    - A prediction of `hopgate eval`, with `retrieval_steps` and `match`: where nothing was
      retrieved it needs retrieval unless it matched; where something was, it says nothing about
      that and is passed over.

    Raises:
        ValueError: The file cannot be read, a row is none of these (path and line are named), or
            no row is left.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"the pool {path} cannot be read: {reason}; give a JSONL file") from error
    rows = [
        labelled
        for number, line in enumerate(lines, start=1)
        if line.strip() and (labelled := _labelled(line, f"{path}:{number}"))
    ]
    if not rows:
        raise ValueError(
            f"the pool {path} holds no question that was answered without retrieval or labelled; "
            'add rows such as {"question": "…", "answer": "Yes"}'
        )
    return rows


def _labelled(line: str, where: str) -> Labelled | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON; each line must be one object") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: not a JSON object")
    try:
        question = check_question(row.get("question"))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    retrieve = _retrieve(row, where)
    return None if retrieve is None else Labelled(question, retrieve)


def _retrieve(row: dict[str, Any], where: str) -> bool | None:
    """Tell whether a row's question needs retrieval; None: the row does not say."""
    if "answer" in row:
        word = str(row["answer"]).strip().strip("[]").strip().lower()
        if word not in ("yes", "no"):
            raise ValueError(f"{where}: answer is {row['answer']!r}; it must be Yes or No")
        return word == "yes"
    if "correct" in row:
        correct = row["correct"]
        if not isinstance(correct, list) or not set(map(str, correct)) <= _STRATEGIES:
            raise ValueError(
                f"{where}: correct is {correct!r}; it must list any of zero, one, multiple"
            )
        return "zero" not in correct
    steps, match = row.get("retrieval_steps"), row.get("match")
    if isinstance(steps, int) and isinstance(match, bool):
        # The match metric finds gold "no" in "I don't know".
        return None if steps else not (match and row.get("known", True))
    raise ValueError(
        f"{where}: the row has neither `answer` (Yes or No) nor `correct`, and is no prediction "
        "with `retrieval_steps` and `match`"
    )


class Pool:
    """The questions of a pool that need retrieval, embedded when one is first picked.

    No questions of a pool are not shown: as in the paper, those are written by hand.
    """

    def __init__(self, path: Path) -> None:
        """Read the pool.

        Raises:
            ValueError: See `read_pool`; or no question of the pool needs retrieval.
        """
        needed = [prompts.as_data(row.question) for row in read_pool(path) if row.retrieve]
        self._forms = {normalise(question): question for question in needed}
        if not needed:
            raise ValueError(
                f"the pool {path} holds no question that needs retrieval; add rows with answer Yes"
            )
        self._embedding = Lock()

    @cached_property
    def _vectors(self) -> "Vectors":
        return _embedded(list(self._forms.values()))

    def pick(self, question: str, count: int) -> tuple[Demo, ...]:
        """Pick demonstrations for a question; blocks.

        Args:
            question: The question that the gate is asked about; never picked itself.
            count: How many, an even number: half No, written by hand, and half Yes, the pool's
                nearest by cosine similarity. Fewer of both where the pool has too few.

        Returns:
            No, Yes, No, Yes …; the nearest Yes comes last.
        """
        asked = normalise(question)
        no = [demo for demo in _NO_DEMOS if normalise(demo.asked) != asked]
        yes = self._nearest(question, asked, min(count // 2, len(no)))[::-1]
        return tuple(demo for pair in zip(no, yes, strict=False) for demo in pair)

    def _nearest(self, question: str, asked: str, count: int) -> list[Demo]:
        import numpy as np

        from hopgate.retrievers.encoders import load_encoder

        with self._embedding:
            vectors = self._vectors
        (query,) = load_encoder().encode_queries([question])
        order = np.argsort(-(vectors @ query), kind="stable")  # of length 1: dot is cosine
        forms = list(self._forms)
        others = [forms[i] for i in order if forms[i] != asked]
        return [Demo(self._forms[form], YES) for form in others[:count]]


_Stamp = tuple[int, int]  # mtime in ns and size
_pools: dict[Path, tuple[_Stamp, Pool]] = {}
_loading = Lock()


def load_pool(path: Path) -> Pool:
    """Return the pool of a file, read once per process until the file changes; blocks.

    Raises:
        ValueError: See `Pool`.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise ValueError(f"the pool {path} cannot be read: {error.strerror}") from error
    stamp = (stat.st_mtime_ns, stat.st_size)
    with _loading:
        known = _pools.get(path)
        if known is None or known[0] != stamp:
            _pools[path] = known = (stamp, Pool(path))
        return known[1]


def _embedded(questions: Sequence[str]) -> "Vectors":
    """Embed questions, or read their vectors where an earlier process has kept them."""
    from hopgate.retrievers.encoders import load_encoder

    encoder = load_encoder()
    content = json.dumps([encoder.fingerprint, *questions]).encode()
    file = folders.cache() / "demonstrations" / f"{hashlib.sha256(content).hexdigest()}.npy"
    kept = _read_vectors(file, (len(questions), encoder.dimension))
    if kept is not None:
        return kept
    vectors = encoder.encode_queries(questions)
    _keep_vectors(file, vectors)
    return vectors


def _read_vectors(file: Path, shape: tuple[int, int]) -> "Vectors | None":
    import numpy as np

    try:
        with file.open("rb") as handle:
            vectors: Vectors = np.lib.format.read_array(handle, allow_pickle=False)
    except (OSError, ValueError):
        return None
    return vectors if vectors.shape == shape and vectors.dtype == np.float32 else None


def _keep_vectors(file: Path, vectors: "Vectors") -> None:
    """Write vectors whole or not at all; a folder that cannot be written costs only time."""
    import numpy as np

    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, vectors, allow_pickle=False)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folders.write_whole(file, buffer.getvalue())
    except OSError as error:
        log.info("the pool's vectors are not kept in %s: %s", file.parent, error)
