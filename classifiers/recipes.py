"""Training settings for each kind of base."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Settings of a training with AdamW and a linear schedule.

    Attributes:
        epochs: Passes over the questions.
        batch_size: Questions in a batch.
        learning_rate: At the start of the schedule, which falls to 0.
        tuned_layers: Number of top encoder layers that are trained, with everything above them;
            None trains everything that this kind of network can train.
        readout_rate: The learning rate of the `utility` objective's untrained readout.
        averaged: Use the mean of the weights over the steps of the last epoch.
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
