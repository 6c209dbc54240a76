"""Classifiers: what decides how deep to retrieve.

`router` answers with probabilities of A, B and C at any α; `training` fine-tunes its ends on
`labels`, by hard labels or by `utility`, and `adding` gives a trained router one more LLM;
`networks` are what is trained, `serving` a faster forward of the T5; `distill` builds the small T5
base that the shipped router started from; `checkpoint` is the folder they are kept in.
Importing this package loads neither torch nor transformers.
"""

from hopgate.classifiers.adding import add_profiles
from hopgate.classifiers.checkpoint import profiles_in, verify
from hopgate.classifiers.labels import LabelRow, QuestionRow, read_labels, read_questions
from hopgate.classifiers.profiles import chosen_profile, profile_for
from hopgate.classifiers.router import Router, load_router
from hopgate.classifiers.training import train

__all__ = [
    "LabelRow",
    "QuestionRow",
    "Router",
    "add_profiles",
    "chosen_profile",
    "load_router",
    "profile_for",
    "profiles_in",
    "read_labels",
    "read_questions",
    "train",
    "verify",
]
