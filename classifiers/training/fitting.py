"""The training loop of all weights and objectives, which resumes after a kill."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from hopgate.classifiers.networks import T5Network, padded
from hopgate.classifiers.training.bases import Recipe
from hopgate.common.files import atomic_write

Advance = Callable[[str, int, int], None]
"""Called with the stage, the number of steps done, and their total."""
BUCKET = 8
"""Number of batches whose questions are sorted by length together, which saves padding."""


class Unfinished:
    """A hidden folder beside the output that holds the last state of each stage of a training."""

    def __init__(self, out: Path, fingerprint: str) -> None:
        """Use the folder of an output.

        Args:
            out: Where the trained router goes.
            fingerprint: Hash of data, recipe and start. The state of a training with any other
                fingerprint is ignored.
        """
        self._folder = out.absolute().with_name(f".{out.name}.training")
        self._fingerprint = fingerprint

    def resume(self, stage: str, **parts: Any) -> list[float]:
        """Restore a saved stage, in place; return its losses so far, none if it was not saved."""
        try:
            saved = torch.load(self._path(stage), map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, UnpicklingError):
            return []
        if saved["fingerprint"] != self._fingerprint:
            return []
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        return list(saved["losses"])

    def save(self, stage: str, losses: Sequence[float], **parts: Any) -> None:
        """Replace the saved state of a stage."""
        state = {name: part.state_dict() for name, part in parts.items()}
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self._path(stage)) as file:
            torch.save({"fingerprint": self._fingerprint, "losses": list(losses), **state}, file)

    def discard(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, stage: str) -> Path:
        return self._folder / f"{stage}.pt"


@dataclass(frozen=True)
class Training:
    """State that all stages of a training share.

    Attributes:
        recipe: Epochs, batch size and learning rate.
        seed: For the order and the dropout.
        unfinished: Where the state is saved after each epoch.
        advance: Called after each step.
    """

    recipe: Recipe
    seed: int
    unfinished: Unfinished
    advance: Advance

    def fit(
        self,
        network: T5Network,
        ids: Sequence[list[int]],
        loss_of: Callable[[Tensor, Tensor], Tensor],
        stage: str,
        readout: nn.Module | None = None,
    ) -> list[float]:
        """Train a network, in place, resuming after the last saved epoch.

        Args:
            network: Gives the features; its parameters that require gradients are trained.
            ids: Token ids of each question.
            loss_of: Mean loss of a batch, from its features and the indices of its questions.
            stage: Name of this stage, unique within a training.
            readout: A layer on top of the features that the loss uses; trained too.

        Returns:
            Mean loss of each epoch.

        Raises:
            RuntimeError: The loss is not finite.
        """
        recipe, advance = self.recipe, self.advance
        modules = torch.nn.ModuleList([network] if readout is None else [network, readout])
        rates = (recipe.learning_rate, recipe.readout_rate)
        groups: list[Any] = [
            {"params": [p for p in module.parameters() if p.requires_grad], "lr": rate}
            for module, rate in zip(modules, rates, strict=False)
        ]
        weights = torch.nn.ParameterList(p for group in groups for p in group["params"])
        device = weights[0].device
        epoch_steps = -(-len(ids) // recipe.batch_size)
        steps = recipe.epochs * epoch_steps
        optimizer = torch.optim.AdamW(groups)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        state = {"weights": weights, "optimizer": optimizer, "schedule": schedule}
        losses = self.unfinished.resume(stage, **state)
        step = len(losses) * epoch_steps
        advance(stage, step, steps)
        _train_mode(modules)
        for epoch in range(len(losses), recipe.epochs):
            torch.manual_seed(1000 * self.seed + epoch)
            total = 0.0
            averaged = recipe.averaged and epoch == recipe.epochs - 1
            mean = AveragedModel(weights) if averaged else None
            for batch in _batches(ids, recipe.batch_size):
                tokens, mask = padded([ids[i] for i in batch], device)
                loss = loss_of(network.features(tokens, mask), torch.tensor(batch, device=device))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
                optimizer.step()
                schedule.step()
                if mean:
                    mean.update_parameters(weights)
                total += loss.item() * len(batch)
                step += 1
                advance(stage, step, steps)
            if not math.isfinite(total):
                raise RuntimeError(
                    f"training {stage} diverged in epoch {epoch + 1}: its loss is {total}; "
                    f"lower the learning rate of {recipe.learning_rate:g}"
                )
            losses.append(round(total / len(ids), 4))
            if mean:
                weights.load_state_dict(mean.module.state_dict())
            self.unfinished.save(stage, losses, **state)
        modules.eval()
        return losses


def _batches(ids: Sequence[list[int]], size: int) -> Iterator[list[int]]:
    """Yield the batches of one epoch, shuffled, each of questions of similar length."""
    order = torch.randperm(len(ids)).tolist()
    batches = []
    for start in range(0, len(order), size * BUCKET):
        bucket = sorted(order[start : start + size * BUCKET], key=lambda i: len(ids[i]))
        batches += [bucket[first : first + size] for first in range(0, len(bucket), size)]
    yield from (batches[at] for at in torch.randperm(len(batches)).tolist())


def _train_mode(modules: nn.Module) -> None:
    """Switch dropout on, except in modules that are frozen."""
    modules.train()
    for module in modules.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()
