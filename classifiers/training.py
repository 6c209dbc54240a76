"""Fine-tune a router: cost and reliability weights for each LLM, from one base.

All weights start from the same base; otherwise a blend of them would be meaningless (Flare-Aug,
section 3). With the `flare` objective, as published, the cost weights learn the cheapest strategy
that answers a question for one LLM, and the reliability weights, one set for all LLMs, learn
single-hop → B and multi-hop → C. With `utility`, both weights of each LLM are derived from one
network that learns all outcomes (`hopgate.classifiers.utility`).
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hopgate.classifiers.checkpoint import (
    BASE,
    COST,
    MANIFEST,
    MAX_TOKENS,
    PROFILE,
    RELIABILITY,
    Checkpoint,
    check_free,
    read,
    router_folder,
    split,
    write,
)
from hopgate.classifiers.doubts import mostly_english
from hopgate.classifiers.drift import summarise
from hopgate.classifiers.labels import LabelRow, read_labels
from hopgate.classifiers.recipes import HEAD_ONLY, PUBLISHED, SMALL, Recipe
from hopgate.classifiers.router import Router
from hopgate.common.extras import TRAINING, require
from hopgate.common.strategies import LABELS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer
    from torch import Tensor, nn

    from hopgate.classifiers.dial import Dial
    from hopgate.classifiers.fitting import Advance, Unfinished
    from hopgate.classifiers.networks import Network

    Parts = dict[str, dict[str, NDArray[np.float32]]]
    Losses = dict[str, list[float]]
    Dials = dict[str, Dial]

Objective = Literal["flare", "utility"]
OBJECTIVES: tuple[Objective, ...] = ("flare", "utility")
RESERVED = ("auto", "base", "reliability", "shared")
"""Names that a profile cannot have."""
DIALLED = (
    "The dial of each LLM (`dials` in manifest.json) was made from the training questions: equal "
    "turns of α buy about equal shares of the mean retrieval steps between α = 0 and α = 1."
)
"""For the card of a router with dials."""
MINILM = "minilm"
"""The base of that name: the embedded all-MiniLM-L6-v2, frozen, under a small untrained layer."""


class Start(NamedTuple):
    """The base of a training."""

    network: Network
    architecture: str
    config: dict[str, Any]
    tokenizer: Tokenizer
    recipe: Recipe
    objective: Objective


def train(
    cost: Mapping[str, Sequence[Path]],
    reliability: Path,
    out: Path,
    *,
    base: str = "builtin",
    objective: Objective | None = None,
    asked: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    notes: str = "",
    overwrite: bool = False,
    advance: Advance = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Train all weights and write the router's folder.

    Runs on a GPU if there is one. A killed training resumes after its last complete epoch when it
    is started again with the same data and settings.

    Args:
        cost: Label files of each LLM, by the name of its profile.
        reliability: Label file with B for single-hop and C for multi-hop questions.
        out: Folder to write.
        base: `builtin`, `minilm`, the folder of a router or base (all with the recipe for small
            ones), or a pretrained T5 (folder or name) that `transformers` can load.
        objective: Default: `flare` for a pretrained T5 and for rows without `correct`, else
            `utility`.
        asked: For `utility`: number of questions put to the LLMs, if the cost files leave out
            those that no strategy answered.
        epochs: Passes over the questions; default: the recipe of the base (`PUBLISHED` for a
            pretrained T5).
        batch_size: Questions in a batch; default: the recipe's.
        learning_rate: Default: the recipe's.
        seed: For the order and the dropout.
        notes: Markdown for the model card, e.g. the origin of the data and its licence.
        overwrite: Replace an existing router's folder.
        advance: Called with the stage, its steps done and their total after each step.

    Returns:
        The manifest's `training`: data, recipe, seed and figures.

    Raises:
        ValueError: Labels, base or settings are unusable, or `out` exists.
        RuntimeError: The training diverged, or `out` is not writable.
    """
    require("training a router", *TRAINING)
    from hopgate.classifiers.networks import add_graph, state_of

    out = out.expanduser()
    check_free(out, overwrite)
    labels = {profile: read_cost(profile, paths) for profile, paths in cost.items()}
    hops = _read_reliability(reliability)
    start = load_base(base, seed)
    objective = objective or _default_objective(start, labels)
    if objective not in OBJECTIVES:
        raise ValueError(f"objective is {objective!r}; choose one of {', '.join(OBJECTIVES)}")
    if asked is not None and objective == "flare":
        raise ValueError("--asked applies only to the utility objective; leave it out")
    recipe = _recipe(
        start.recipe, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate
    )
    training: dict[str, Any] = {
        "base": base if start.recipe is PUBLISHED else Path(base).name,
        "objective": objective,
        "data": {
            "cost": {name: [path.name for path in paths] for name, paths in cost.items()},
            "reliability": reliability.name,
            "asked": asked,
            "labels": {
                name: {label or "none": n for label, n in Counter(r.label for r in rows).items()}
                for name, rows in {**labels, RELIABILITY: hops}.items()
            },
        },
        "recipe": asdict(recipe),
        "seed": seed,
        "english": mostly_english(
            row.question for rows in (*labels.values(), hops) for row in rows
        ),
    }
    unfinished = _unfinished(out, training, start, labels, hops)
    run = _Training(start, labels, hops, recipe, seed, unfinished, advance)
    trained = run.utility(asked) if objective == "utility" else run.flare()
    parts, training["loss"], dials = trained
    checkpoint = Checkpoint(
        architecture=start.architecture,
        config=start.config,
        tokenizer=start.tokenizer,
        parts=split(parts, state_of(start.network)),
        training=training,
        dials=dials,
    )
    add_graph(checkpoint)
    if checkpoint.graph:  # else each pass would need torch, and every α a pass of its own
        questions = [row.question for rows in (*labels.values(), hops) for row in rows]
        for profile in checkpoint.profiles:
            router, rows = Router(checkpoint, profile), labels[profile]
            checkpoint.known[profile] = summarise(router, questions)
            if objective == "utility":  # whose rows have the outcomes
                checkpoint.alphas[profile] = router.cheapest_alpha(rows)
    write(checkpoint, out, _card(checkpoint, notes), int8=recipe.int8, overwrite=overwrite)
    unfinished.discard()
    return training


def load_base(base: str, seed: int = 0) -> Start:
    """Load the network to start from, with the recipe and objective that suit it.

    Raises:
        ValueError: `base` is not `builtin`, `minilm`, a router's folder with a base, or a T5 that
            `transformers` can load.
    """
    from hopgate.classifiers import networks

    if base == MINILM:
        network, tokenizer = networks.minilm_network(seed)
        config = network.encoder.config.to_diff_dict()
        return Start(network, "minilm", config, tokenizer, HEAD_ONLY, "utility")
    folder = router_folder(base)
    if (folder / MANIFEST).is_file():
        found = read(folder)
        start = networks.network_from(found.architecture, found.config, found.state(BASE))
        recipe = HEAD_ONLY if found.architecture == MINILM else SMALL
        return Start(start, found.architecture, found.config, found.tokenizer, recipe, "utility")
    t5, tokenizer = _pretrained(str(folder) if folder.is_dir() else base)
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    start = networks.from_pretrained(t5, tokenizer)
    return Start(start, "t5", t5.config.to_diff_dict(), tokenizer, PUBLISHED, "flare")


def _pretrained(base: str) -> Any:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoTokenizer
    from transformers.models.t5.modeling_t5 import T5ForConditionalGeneration

    try:
        loaded: Any = T5ForConditionalGeneration.from_pretrained(
            base, use_safetensors=True, dtype=torch.float32, output_loading_info=True
        )
        model, info = loaded
        if lacking := sorted(info["missing_keys"]) or info["mismatched_keys"]:
            raise ValueError(
                f"its weights are not those of a complete T5: {lacking[0]} is missing or differs"
            )
        return model, AutoTokenizer.from_pretrained(base).backend_tokenizer
    except (OSError, ValueError, AttributeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"base {base!r} cannot be loaded as a T5: {reason}") from error


@dataclass(frozen=True)
class _Training:
    """One training, by either objective.

    Both return weights by part, losses by stage, and the dials, which only `utility` has: along
    the blend of `flare`, steps may fall as well as rise.
    """

    start: Start
    cost: Mapping[str, Sequence[LabelRow]]
    reliability: Sequence[LabelRow]
    recipe: Recipe
    seed: int
    unfinished: Unfinished
    advance: Advance

    def flare(self) -> tuple[Parts, Losses, Dials]:
        """Train each set of weights on its own labels."""
        from hopgate.classifiers.networks import state_of

        parts, losses = {}, {}
        rows_of = {COST + profile: rows for profile, rows in self.cost.items()}
        for part, rows in {**rows_of, RELIABILITY: self.reliability}.items():
            network = self._network()
            losses[part] = self._fit_labels(network, rows, part)
            parts[part] = state_of(network)
        return parts, losses, {}

    def utility(self, asked: int | None) -> tuple[Parts, Losses, Dials]:
        """Train one network on all outcomes and derive the label heads from it."""
        import torch

        from hopgate.classifiers import utility
        from hopgate.classifiers.fitting import all_features
        from hopgate.classifiers.networks import state_of

        network = self._network()
        device = network.head.weight.device
        targets = utility.targets_of(self.cost, self.reliability, asked).to(device)
        torch.manual_seed(self.seed)
        readout = utility.new_readout(network.head.in_features, len(self.cost)).to(device)
        loss = utility.loss_of(readout, targets)
        losses = self._fit(network, targets.questions, loss, "outcomes", readout)
        features = all_features(network, self._ids(targets.questions))
        heads = utility.label_heads(features, readout.cpu(), list(self.cost))
        body, dials = state_of(network), utility.dials_of(features, heads)
        return {part: body | head for part, head in heads.items()}, {"outcomes": losses}, dials

    def _network(self) -> Network:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        network = copy.deepcopy(self.start.network).to(device)
        network.tune(self.recipe.tuned_layers)
        return network

    def _ids(self, questions: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.start.tokenizer.encode_batch(list(questions))]

    def _fit_labels(self, network: Network, rows: Sequence[LabelRow], part: str) -> list[float]:
        import torch

        labelled = [(row.question, LABELS.index(row.label)) for row in rows if row.label]
        labels = torch.tensor([label for _, label in labelled], device=network.head.weight.device)

        def loss(features: Tensor, batch: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(network.head(features), labels[batch])

        return self._fit(network, [question for question, _ in labelled], loss, part)

    def _fit(
        self,
        network: Network,
        questions: Sequence[str],
        loss: Callable[[Tensor, Tensor], Tensor],
        stage: str,
        readout: nn.Module | None = None,
    ) -> list[float]:
        from hopgate.classifiers.fitting import fit

        return fit(
            network,
            readout,
            self._ids(questions),
            loss,
            self.recipe,
            seed=self.seed,
            stage=stage,
            unfinished=self.unfinished,
            advance=self.advance,
        )


def check_profile(name: str) -> None:
    """Check the name of a profile.

    Raises:
        ValueError: It is invalid.
    """
    if not PROFILE.fullmatch(name) or name in RESERVED:
        raise ValueError(
            f"invalid profile name {name!r}; use up to 64 of a-z, 0-9, dot, hyphen and "
            f"underscore, starting with a letter or digit, and none of {', '.join(RESERVED)}"
        )


def read_cost(profile: str, paths: Sequence[Path]) -> list[LabelRow]:
    """Read all label files of one LLM.

    Raises:
        ValueError: The profile's name is invalid, an id is in two files, or all rows have the
            same label.
    """
    check_profile(profile)
    rows: dict[str, LabelRow] = {}
    for path in paths:
        for row in read_labels(path):
            if row.id in rows:
                raise ValueError(f"{path}: id {row.id!r} is also in another cost file of {profile}")
            rows[row.id] = row
    return _checked_classes(f"cost ({profile})", list(rows.values()))


def _read_reliability(path: Path) -> list[LabelRow]:
    rows = read_labels(path)
    for row in rows:
        if row.label not in ("B", "C"):
            raise ValueError(
                f"{path}: row {row.id!r} has the label {row.label!r}; reliability labels are B "
                "(single-hop) and C (multi-hop)"
            )
    return _checked_classes("reliability", rows)


def _checked_classes(name: str, rows: list[LabelRow]) -> list[LabelRow]:
    if len({row.label for row in rows} - {None}) < 2:
        raise ValueError(
            f"the {name} labels are all of one class, so there is nothing to learn; add others"
        )
    return rows


def _default_objective(start: Start, cost: Mapping[str, Sequence[LabelRow]]) -> Objective:
    known = all(row.correct is not None for rows in cost.values() for row in rows)
    return start.objective if known else "flare"


def _recipe(recipe: Recipe, **given: Any) -> Recipe:
    for name, value in given.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} is {value!r}; it must be above 0")
    return replace(recipe, **{name: value for name, value in given.items() if value is not None})


def _unfinished(
    out: Path,
    training: Mapping[str, Any],
    start: Start,
    cost: Mapping[str, Sequence[LabelRow]],
    reliability: Sequence[LabelRow],
) -> Unfinished:
    """Return the state of a killed run, identified by a hash of everything that it depends on."""
    from hopgate.classifiers.fitting import Unfinished
    from hopgate.classifiers.networks import state_of

    rows = [
        asdict(row) | {"correct": None if row.correct is None else sorted(row.correct)}
        for row in (*itertools.chain(*cost.values()), *reliability)
    ]
    digest = hashlib.sha256(json.dumps([training, rows], sort_keys=True).encode())
    for name, values in state_of(start.network).items():
        digest.update(name.encode())
        digest.update(values.tobytes())
    return Unfinished(out, digest.hexdigest())


def _card(checkpoint: Checkpoint, notes: str) -> str:
    training = checkpoint.training
    data, recipe = training["data"], training["recipe"]
    lines = [
        f"# hopgate router: {', '.join(checkpoint.profiles)}",
        "",
        f"Network: {checkpoint.architecture}, from {training['base']}; objective: "
        f"{training['objective']}. Cost weights (α = 0) and reliability weights (α = 1) are "
        "blended per request. Labels: A (no retrieval), B (one retrieval), C (several).",
        "",
        *([DIALLED, ""] if checkpoint.dials else []),
        "## Data",
        "",
        *(
            f"- {name}: {', '.join(data['cost'].get(name, [data['reliability']]))}, labels {counts}"
            for name, counts in data["labels"].items()
        ),
        *(
            [f"- questions, including those that no strategy answered: {data['asked']}"]
            if data["asked"]
            else []
        ),
        "",
        "## Recipe",
        "",
        *(f"- {name}: {value}" for name, value in recipe.items()),
        f"- seed: {training['seed']}",
        "",
        "## Figures",
        "",
        *(
            f"- mean loss of each epoch, {stage}: {all_}"
            for stage, all_ in training["loss"].items()
        ),
    ]
    return "\n".join(lines + (["", notes.strip()] if notes.strip() else [])) + "\n"
