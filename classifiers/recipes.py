"""How much training, for each kind of base."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """How weights are fitted, under AdamW with a linear schedule.

    Attributes:
        epochs: Passes over the questions.
        batch_size: Questions a step.
        learning_rate: At the start of the schedule, which falls to 0.
        tuned_layers: Encoder layers that are trained, counted from the top, beside what is above
            them; None trains all that this kind of network ever trains.
        readout_rate: The learning rate of the `utility` objective's untrained readout.
        averaged: End with the mean of the weights after each step of the last epoch.
        int8: Store large matrices as int8 instead of in half precision.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    tuned_layers: int | None = None
    readout_rate: float = 1e-3
    averaged: bool = False
    int8: bool = False


PUBLISHED = Recipe(epochs=20, batch_size=64, learning_rate=3e-5)
"""Flare-Aug, section 4: T5-large, AdamW, linear schedule; for any pretrained T5."""
SMALL = Recipe(
    epochs=3, batch_size=32, learning_rate=1e-4, tuned_layers=4, averaged=True, int8=True
)
"""For the built-in base; chosen by cross-validation on the train splits."""
HEAD_ONLY = Recipe(epochs=20, batch_size=32, learning_rate=1e-3, int8=True)
"""For a frozen encoder with a small layer on top."""
