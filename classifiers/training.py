"""Fine-tunes a router: a cost end and a reliability end from one base.

The cost end learns, for one LLM, the cheapest strategy that answers a question; the reliability
end learns single-hop → B and multi-hop → C. Both start from the same weights, without which a
blend of the two would mean nothing (Flare-Aug, section 3).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopgate.classifiers.checkpoint import (
    BUILTIN,
    LABELS,
    MANIFEST,
    MAX_TOKENS,
    Checkpoint,
    check_free,
    label_ids,
    model_from,
    read,
    split,
    untied,
    write,
)
from hopgate.classifiers.labels import LabelRow, read_labels
from hopgate.classifiers.progress import progress_bar

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import T5ForConditionalGeneration


@dataclass(frozen=True)
class Recipe:
    """How an end is fine-tuned.

    Attributes:
        epochs: Passes over an end's own labels.
        batch_size: Questions a step.
        learning_rate: Peak of a linear schedule down to 0, under AdamW.
        common_epochs: Passes over the labels of both ends, before they part.
        tuned_layers: Encoder layers that are trained, counted from the top, beside the whole
            decoder; None trains all, the embeddings included.
        int8: Store matrices as int8 instead of in half precision.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    common_epochs: int = 0
    tuned_layers: int | None = None
    int8: bool = False


PUBLISHED = Recipe(epochs=20, batch_size=64, learning_rate=3e-5)
"""Flare-Aug, appendix: T5-large, AdamW, linear schedule; for any pretrained T5."""
SMALL = Recipe(
    epochs=2, batch_size=32, learning_rate=1.5e-4, common_epochs=1, tuned_layers=2, int8=True
)
"""For the built-in base; chosen on held-out parts of the train splits."""


def train(
    cost: Sequence[Path],
    reliability: Path,
    out: Path,
    *,
    base: str = "builtin",
    profile: str = "custom",
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Trains both ends and writes the router's folder.

    Runs on a GPU if there is one; shows progress on stderr.

    Args:
        cost: Label files of the LLM; several are taken together.
        reliability: Label file with B for single-hop and C for multi-hop questions.
        out: Folder to write.
        base: `builtin`, a router's or base's folder, or a pretrained T5 (folder or name) that
            `transformers` can load.
        profile: Name of the LLM that `cost` was made with.
        epochs: Passes over each end's labels; default: the recipe of the base (`PUBLISHED` for
            a pretrained T5, else `SMALL`).
        batch_size: Questions a step; default: the recipe's.
        learning_rate: Default: the recipe's.
        seed: Of the order and the dropout.
        overwrite: Replace a router's folder that is there.

    Returns:
        What the manifest keeps as `training`: data, recipe, seed and figures.

    Raises:
        ValueError: If labels, base or settings are unusable, or `out` exists.
    """
    import torch

    check_free(out, overwrite)
    labels = {
        "cost": [row for path in cost for row in read_labels(path)],
        "reliability": read_labels(reliability),
    }
    for end, rows in labels.items():
        if len({row.label for row in rows}) < 2:
            raise ValueError(f"the {end} labels are all of one class; nothing can be learnt")
    model, tokenizer, recipe = load_base(base)
    recipe = replace(
        recipe,
        epochs=recipe.epochs if epochs is None else epochs,
        batch_size=recipe.batch_size if batch_size is None else batch_size,
        learning_rate=recipe.learning_rate if learning_rate is None else learning_rate,
    )
    _check_recipe(recipe)
    start = {"base": copy.deepcopy(untied(model))}
    torch.nn.Module.to(model, "cuda" if torch.cuda.is_available() else "cpu")
    _freeze(model, recipe.tuned_layers)
    states, losses = _train_ends(model, tokenizer, labels, recipe, seed)
    training = {
        "base": Path(base).name,
        "data": {
            "cost": [path.name for path in cost],
            "reliability": reliability.name,
            "labels": {end: dict(Counter(r.label for r in rows)) for end, rows in labels.items()},
        },
        "recipe": asdict(recipe),
        "seed": seed,
        "loss": losses,
    }
    checkpoint = Checkpoint(
        config=model.config.to_diff_dict(),
        labels=label_ids(tokenizer),
        tokenizer=tokenizer,
        parts=split(start | states),
        profile=profile,
        training=training,
    )
    write(checkpoint, out, _card(checkpoint), int8=recipe.int8, overwrite=overwrite)
    return training


def load_base(base: str) -> tuple[T5ForConditionalGeneration, Tokenizer, Recipe]:
    """The model to start from, its tokenizer, and the recipe that suits it.

    Raises:
        ValueError: If `base` is neither `builtin`, nor a router's folder with a base, nor a T5
            that `transformers` can load.
    """
    folder = BUILTIN if base == "builtin" else Path(base)
    if (folder / MANIFEST).is_file():
        checkpoint = read(folder)
        model = model_from(checkpoint.config, checkpoint.state("base"))
        return model, checkpoint.tokenizer, SMALL
    import torch
    from transformers import AutoTokenizer
    from transformers.models.t5.modeling_t5 import T5ForConditionalGeneration

    try:
        model = T5ForConditionalGeneration.from_pretrained(
            base, use_safetensors=True, dtype=torch.float32
        )
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(base).backend_tokenizer
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"base {base!r} cannot be loaded as a T5: {reason}") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return model, tokenizer, PUBLISHED


def _check_recipe(recipe: Recipe) -> None:
    for name in ("epochs", "batch_size", "learning_rate"):
        if not getattr(recipe, name) > 0:
            raise ValueError(f"{name} is {getattr(recipe, name)!r}; it must be above 0")


def _freeze(model: T5ForConditionalGeneration, tuned_layers: int | None) -> None:
    """Leaves the decoder, the final norm and the top `tuned_layers` of the encoder to train."""
    if tuned_layers is None:
        return
    model.requires_grad_(False)
    for module in (
        *model.encoder.block[len(model.encoder.block) - tuned_layers :],
        model.encoder.final_layer_norm,
        model.decoder.block,
        model.decoder.final_layer_norm,
    ):
        module.requires_grad_(True)


def _train_ends(
    model: T5ForConditionalGeneration,
    tokenizer: Tokenizer,
    labels: dict[str, list[LabelRow]],
    recipe: Recipe,
    seed: int,
) -> tuple[dict[str, dict[str, Any]], dict[str, list[float]]]:
    """Fine-tunes each end from a common start; returns their parameters and losses per epoch."""
    losses: dict[str, list[float]] = {}
    if recipe.common_epochs:
        rows = [row for part in labels.values() for row in part]
        common = replace(recipe, epochs=recipe.common_epochs)
        losses["common"] = fine_tune(model, tokenizer, rows, common, seed=seed, name="common")
    states: dict[str, dict[str, Any]] = {}
    for end, rows in labels.items():
        tuned = copy.deepcopy(model)
        losses[end] = fine_tune(tuned, tokenizer, rows, recipe, seed=seed, name=end)
        states[end] = {name: tensor.cpu() for name, tensor in untied(tuned).items()}
    return states, losses


def fine_tune(
    model: T5ForConditionalGeneration,
    tokenizer: Tokenizer,
    rows: Sequence[LabelRow],
    recipe: Recipe,
    *,
    seed: int,
    name: str,
) -> list[float]:
    """Trains `model`, in place, to give each question's label at the first decoder step.

    The loss is the cross-entropy over the three label tokens, which are all that is ever read.

    Args:
        model: Its parameters that require gradients are trained.
        tokenizer: Of the model.
        rows: Questions with labels.
        recipe: Epochs, batch size and learning rate.
        seed: Of the order and the dropout.
        name: Shown beside the progress bar.

    Returns:
        Mean loss of each epoch.
    """
    import torch

    from hopgate.classifiers.router import label_logits, label_rows

    torch.manual_seed(seed)
    device = model.shared.weight.device
    ids = [encoding.ids for encoding in tokenizer.encode_batch([row.question for row in rows])]
    targets = torch.tensor([LABELS.index(row.label) for row in rows], device=device)
    tokens = list(label_ids(tokenizer).values())
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate)
    steps = recipe.epochs * -(-len(rows) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    means: list[float] = []
    model.train()
    for block in model.encoder.block:
        block.train(any(p.requires_grad for p in block.parameters()))
    with progress_bar(name, steps) as step_done:
        for _ in range(recipe.epochs):
            total = 0.0
            for batch in torch.split(torch.randperm(len(rows)), recipe.batch_size):
                logits = label_logits(model, label_rows(model, tokens), [ids[i] for i in batch])
                loss = torch.nn.functional.cross_entropy(logits, targets[batch.to(device)])
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
                optimizer.step()
                schedule.step()
                total += loss.item() * len(batch)
                step_done(loss.item())
            means.append(round(total / len(rows), 4))
    model.train(False)
    return means


def _card(checkpoint: Checkpoint) -> str:
    training = checkpoint.training
    recipe = "\n".join(f"- {name}: {value}" for name, value in training["recipe"].items())
    return f"""# hopgate router, profile {checkpoint.profile}

A T5 with two sets of weights, blended per request: cost end (α = 0) and reliability end (α = 1).
Label tokens A (no retrieval), B (one), C (several), read at the first decoder step.

- base: {training["base"]}
- cost labels: {", ".join(training["data"]["cost"])} {training["data"]["labels"]["cost"]}
- reliability labels: {training["data"]["reliability"]} {training["data"]["labels"]["reliability"]}
- seed: {training["seed"]}
- mean loss per epoch: {training["loss"]}

## Recipe

{recipe}
"""
