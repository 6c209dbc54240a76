"""The training loop of every end and objective, which can be killed and resumed."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hopgate.classifiers.networks import padded
from hopgate.classifiers.progress import progress_bar

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from hopgate.classifiers.networks import Network
    from hopgate.classifiers.recipes import Recipe

BUCKET = 8
"""Batches whose questions are sorted by length together, so that little is padding."""


class Unfinished:
    """A hidden folder beside the output that keeps each stage's last epoch until all is done."""

    def __init__(self, out: Path, fingerprint: str) -> None:
        """Knows its own stages, of the same data, recipe and start, by their `fingerprint`."""
        self._folder = out.absolute().with_name(f".{out.name}.training")
        self._fingerprint = fingerprint

    def load(self, stage: str) -> tuple[list[float], dict[str, Tensor]] | None:
        """The losses so far and the tensors of a stage, if one of this training was kept."""
        from safetensors import SafetensorError, safe_open

        path = self._folder / f"{stage}.safetensors"
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                if about.get("fingerprint") != self._fingerprint:
                    return None
                names = list(file.keys())
                return json.loads(about["losses"]), {n: file.get_tensor(n) for n in names}
        except (OSError, SafetensorError):
            return None

    def save(self, stage: str, losses: Sequence[float], tensors: Mapping[str, Tensor]) -> None:
        """Replaces what is kept of a stage."""
        from safetensors.torch import save_file

        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f"{stage}.new"
        about = {"fingerprint": self._fingerprint, "losses": json.dumps(list(losses))}
        save_file({n: t.contiguous() for n, t in tensors.items()}, new, about)
        os.replace(new, self._folder / f"{stage}.safetensors")

    def discard(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def fit(
    network: Network,
    above: Sequence[nn.Module],
    ids: Sequence[list[int]],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    recipe: Recipe,
    *,
    seed: int,
    stage: str,
    unfinished: Unfinished,
) -> list[float]:
    """Trains a network, in place; goes on where it was killed.

    Args:
        network: Gives the features; trained as far as it requires gradients.
        above: What the loss uses on top of the features; trained too.
        ids: Token ids of each question.
        loss_of: Mean loss of a batch, from its features and the indices of its questions.
        recipe: Epochs, batch size and learning rate.
        seed: Of the order and the dropout.
        stage: Shown beside the progress bar; unique within a training.
        unfinished: Where each epoch is kept.

    Returns:
        Mean loss of each epoch.

    Raises:
        RuntimeError: If the loss is not finite.
    """
    import torch

    modules = [network, *above]
    named = {
        f"{at}.{name}": parameter
        for at, module in enumerate(modules)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    device = next(iter(named.values())).device
    rates = [
        recipe.learning_rate if name.startswith("0.") else recipe.readout_rate for name in named
    ]
    optimizer = torch.optim.AdamW({"params": [p]} for p in named.values())
    steps = recipe.epochs * -(-len(ids) // recipe.batch_size)
    losses = resume(unfinished, stage, named, optimizer)
    at = len(losses) * -(-len(ids) // recipe.batch_size)
    _set_training(modules, True)
    with progress_bar(stage, steps, at) as step_done:
        for epoch in range(len(losses), recipe.epochs):
            torch.manual_seed(1000 * seed + epoch)
            total = 0.0
            mean = _Mean(named) if recipe.averaged and epoch == recipe.epochs - 1 else None
            for batch in _batches(ids, recipe.batch_size):
                tokens, mask = padded([ids[i] for i in batch], device)
                loss = loss_of(network.features(tokens, mask), torch.tensor(batch, device=device))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_(named.values(), 1.0)
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * (1 - at / steps)
                optimizer.step()
                if mean:
                    mean.add()
                at += 1
                total += loss.item() * len(batch)
                step_done(loss.item())
            if not math.isfinite(total):
                raise RuntimeError(
                    f"training {stage} diverged in epoch {epoch + 1}: its loss is {total}; lower "
                    f"the learning rate of {recipe.learning_rate:g}"
                )
            losses.append(round(total / len(ids), 4))
            if mean:
                mean.put()
            unfinished.save(stage, losses, snapshot(named, optimizer))
    _set_training(modules, False)
    return losses


class _Mean:
    """The running mean of parameters over an epoch."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        self._named = named
        self._means = {name: parameter.detach().clone() for name, parameter in named.items()}
        self._count = 0

    def add(self) -> None:
        """Takes the parameters as they are now."""
        self._count += 1
        for name, mean in self._means.items():
            mean.lerp_(self._named[name].detach(), 1 / self._count)

    def put(self) -> None:
        """Gives the parameters their means."""
        for name, mean in self._means.items():
            self._named[name].data.copy_(mean)


def all_features(network: Network, ids: Sequence[list[int]]) -> Tensor:
    """The features of every question, without dropout, on the CPU: [questions, width]."""
    import torch

    device = network.head.weight.device
    with torch.inference_mode():
        parts = [
            network.features(*padded(ids[at : at + 64], device)).cpu()
            for at in range(0, len(ids), 64)
        ]
    return torch.cat(parts).clone()


def _batches(ids: Sequence[list[int]], size: int) -> Iterator[list[int]]:
    """One epoch: shuffled batches of questions of like length."""
    import torch

    order = torch.randperm(len(ids)).tolist()
    batches = []
    for start in range(0, len(order), size * BUCKET):
        bucket = sorted(order[start : start + size * BUCKET], key=lambda i: len(ids[i]))
        batches += [bucket[first : first + size] for first in range(0, len(bucket), size)]
    yield from (batches[at] for at in torch.randperm(len(batches)).tolist())


def _set_training(modules: Sequence[nn.Module], on: bool) -> None:
    """Dropout only where something is trained."""
    for module in modules:
        module.train(on)
        for part in module.modules():
            if on and not any(p.requires_grad for p in part.parameters()) and _has_weights(part):
                part.eval()


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def snapshot(named: Mapping[str, Tensor], optimizer: Optimizer) -> dict[str, Tensor]:
    """Weights and optimiser as named tensors, for `Unfinished.save`."""
    kept = {f"weight.{name}": parameter.detach().cpu() for name, parameter in named.items()}
    for at, state in optimizer.state_dict()["state"].items():
        kept |= {f"optimizer.{at}.{key}": value.cpu() for key, value in state.items()}
    return kept


def resume(
    unfinished: Unfinished, stage: str, named: Mapping[str, Tensor], optimizer: Optimizer
) -> list[float]:
    """Puts back what `snapshot` kept of a stage; its losses so far, none if none was kept."""
    found = unfinished.load(stage)
    if found is None:
        return []
    losses, kept = found
    for name, parameter in named.items():
        parameter.data.copy_(kept[f"weight.{name}"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in kept.items():
        if name.startswith("optimizer."):
            _, at, key = name.split(".")
            state.setdefault(int(at), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return losses
