"""The gate's demonstrations: the built-in ones, or the nearest questions of a pool.

RetrievalQA, section 4: two Yes questions by sentence similarity, from those that the model
answered wrongly, and two No questions written by hand. The paper's encoder is SimCSE; here it
is the embedded one.
"""

from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from hopgate.common.cache import Cache
from hopgate.common.files import read_jsonl, shown
from hopgate.common.strategies import FLARE_NAME_OF, FLARE_NAMES
from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.prompts.templates import Demo
from hopgate.nodes.texts.text import as_data, check_question, normalise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

YES, NO = "[Yes]", "[No]"
# The authors' two first.
_NO_DEMOS = tuple(
    dict.fromkeys(d for d in (*prompts.GATE_DEMOS, *prompts.CONFIDENCE_DEMOS) if d.assistant == NO)
)


class LabelledQuestion(NamedTuple):
    """A question, and whether it needs retrieval."""

    question: str
    retrieve: bool


def fixed(count: int) -> tuple[Demo, ...]:
    """Return the built-in demonstrations: the authors' four, or for more, our twelve.

    Args:
        count: An even number up to 12; No and Yes alternate.
    """
    four = prompts.GATE_DEMOS
    return four[:count] if count <= len(four) else prompts.CONFIDENCE_DEMOS[:count]


def read_pool(path: Path) -> list[LabelledQuestion]:
    """Read labelled questions from a JSON lines file; a row has one of three forms.

    - `question` and `answer` (Yes or No in any case, brackets allowed): labelled by hand.
    - `question` and `correct`, the strategies that answered it (`hopgate label`): it needs
      retrieval unless `zero` is among them.
    - A prediction of `hopgate eval`, with `retrieval_steps` and `match`: without retrieval, it
      needs retrieval unless it matched; with retrieval it says nothing and is skipped.

    Raises:
        ValueError: The file cannot be read, a row has none of these forms (the message names path
            and line), or no row is left.
    """
    return read_jsonl(
        path, _labelled, expected='a pool: rows such as {"question": "…", "answer": "Yes"}'
    )


def _labelled(row: dict[str, Any], line: int) -> LabelledQuestion | None:
    question = check_question(row.get("question"))
    retrieve = _needs_retrieval(row)
    return None if retrieve is None else LabelledQuestion(question, retrieve)


def _needs_retrieval(row: dict[str, Any]) -> bool | None:
    """Return whether a row's question needs retrieval; None if the row does not say."""
    if "answer" in row:
        word = str(row["answer"]).strip().strip("[]").strip().lower()
        if word not in ("yes", "no"):
            raise ValueError(f"answer is {shown(row['answer'])}; it must be Yes or No")
        return word == "yes"
    if "correct" in row:
        correct = row["correct"]
        if not isinstance(correct, list) or not set(map(str, correct)) <= set(FLARE_NAMES):
            raise ValueError(
                f"correct is {shown(correct)}; it must list any of {', '.join(FLARE_NAMES)}"
            )
        return FLARE_NAME_OF["none"] not in correct
    steps, match = row.get("retrieval_steps"), row.get("match")
    if isinstance(steps, int) and isinstance(match, bool):
        # The match metric finds gold "no" in "I don't know".
        return None if steps else not (match and row.get("known", True))
    raise ValueError(
        "the row has neither `answer` (Yes or No) nor `correct`, and is not a prediction with "
        "`retrieval_steps` and `match`"
    )


class Pool:
    """The questions of a pool that need retrieval, embedded on first use.

    Pool rows labelled No are never shown: as in the paper, the No demonstrations are hand-written.
    """

    def __init__(self, path: Path) -> None:
        """Read the pool.

        Raises:
            ValueError: See `read_pool`, or no question of the pool needs retrieval.
        """
        needed = [as_data(row.question) for row in read_pool(path) if row.retrieve]
        self._forms = {normalise(question): question for question in needed}
        if not needed:
            raise ValueError(
                f"the pool {path} has no question that needs retrieval; add rows with answer Yes"
            )
        self._embedding = Lock()

    @cached_property
    def _vectors(self) -> "Vectors":
        from hopgate.retrievers.encoders import load_encoder

        return load_encoder().encode_queries(list(self._forms.values()))

    def pick(self, question: str, count: int) -> tuple[Demo, ...]:
        """Pick demonstrations for a question; may block.

        Args:
            question: The question for the gate; it is never picked itself.
            count: An even number: half No, hand-written, and half Yes, the pool's nearest by
                cosine similarity. Fewer of both if the pool has too few.

        Returns:
            No, Yes, No, Yes …; the nearest Yes comes last.
        """
        form = normalise(question)
        no = [demo for demo in _NO_DEMOS if normalise(demo.user) != form]
        yes = self._nearest(question, form, min(count // 2, len(no)))[::-1]
        return tuple(demo for pair in zip(no, yes, strict=False) for demo in pair)

    def _nearest(self, question: str, form: str, count: int) -> list[Demo]:
        import numpy as np

        from hopgate.retrievers.encoders import load_encoder

        with self._embedding:
            vectors = self._vectors
        (query,) = load_encoder().encode_queries([question])
        order = np.argsort(-(vectors @ query), kind="stable")  # unit length: dot is cosine
        forms = list(self._forms)
        others = [forms[i] for i in order if forms[i] != form]
        return [Demo(self._forms[each], YES) for each in others[:count]]


_pools = Cache["Pool"]()


def load_pool(path: Path) -> Pool:
    """Return the pool of a file, read once per process until the file changes; may block.

    Raises:
        ValueError: See `Pool`.
    """
    return _pools.get(path, lambda: Pool(path), files=[path])
