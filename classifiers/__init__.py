"""Classifiers: what decides how deep to retrieve.

`router` answers with probabilities of A, B and C at any α; `training` fine-tunes its two ends on
`labels`; `distill` builds the small T5 base that the shipped router started from; `checkpoint`
is the folder they are kept in. Importing this package loads neither torch nor transformers.
"""

from hopgate.classifiers.checkpoint import verify
from hopgate.classifiers.labels import LabelRow, QuestionRow, read_labels, read_questions
from hopgate.classifiers.router import Router, load_router
from hopgate.classifiers.training import train

__all__ = [
    "LabelRow",
    "QuestionRow",
    "Router",
    "load_router",
    "read_labels",
    "read_questions",
    "train",
    "verify",
]
