"""The router at work: probabilities of A, B and C for a question at any α.

θ(α) = (1 − α)·θ_cost + α·θ_reliability over every parameter in which the two ends differ
(Flare-Aug, section 3). The probabilities are the softmax over the three label rows; no text is
generated. Where the ends differ in the label head alone, all α share one pass of the encoder.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hopgate.classifiers.checkpoint import (
    BUILTIN,
    COST,
    HEAD,
    LABELS,
    MANIFEST,
    MAX_TOKENS,
    Checkpoint,
    profiles_in,
    read,
    router_folder,
)
from hopgate.classifiers.doubts import doubt

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 64
BLENDS = 8
"""Most blends kept in memory beside one another."""
BLEND_BYTES = 512 * 2**20
"""Most memory that kept blends may take; the one in use is always kept."""

Probabilities = dict[str, float]


class Blend(NamedTuple):
    """The network at one α."""

    features: Callable[[Tensor, Tensor], Tensor]
    weight: Tensor
    bias: Tensor


class Job(NamedTuple):
    """A call of `route` that waits for its turn."""

    ids: list[list[int]]
    blends: list[Blend]
    found: Future[list[list[Probabilities]]]


class Router:
    """Routes questions with one network and two sets of weights, blended per request.

    Safe to use from many threads at once, with different α. Calls that arrive while another
    runs are run together, as one batch, with one pass of the encoder where their α allow it. A
    GPU is used if there is one.

    Attributes:
        source: `t5` or `minilm`: what its decisions are marked with.
        profile: The LLM that the cost end was trained for, e.g. `flan-t5-xl`.
        profiles: All that the folder has a cost end for.
        one_pass: Whether all α share one pass of the encoder, so that many cost as much as one.
        training: Data, recipe and figures of the training.
    """

    def __init__(self, checkpoint: Checkpoint, profile: str | None = None) -> None:
        """Takes a router in memory; `Router.load` reads one from disk.

        Args:
            checkpoint: With a reliability end and at least one cost end.
            profile: Which cost end; default: the first.

        Raises:
            ValueError: If an end is missing or the weights do not fit the configuration.
        """
        import torch

        from hopgate.classifiers.networks import network_from

        self.source = checkpoint.architecture
        self.training = checkpoint.training
        self.profiles = checkpoint.profiles
        self.profile = _checked_profile(profile, self.profiles)
        self._tokenizer = checkpoint.tokenizer
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        ends = [checkpoint.state(part) for part in checkpoint.ends(self.profile)]
        self._architecture, self._config = checkpoint.architecture, checkpoint.config
        differing = checkpoint.parts[COST + self.profile].keys()
        self._shared = self._moved(checkpoint.parts["shared"])
        self._cost, self._reliability = (
            self._moved({name: end[name] for name in differing}) for end in ends
        )
        self.one_pass = all(name.startswith(HEAD) for name in self._cost)
        # What serving lays anew for each body: all but the embeddings of the vocabulary.
        self._body_bytes = (
            0
            if self.one_pass
            else sum(
                4 * tensor.numel()
                for name, tensor in ends[0].items()
                if "shared.weight" not in name
            )
        )
        self._body = None
        if not self.one_pass:
            network_from(checkpoint.architecture, checkpoint.config, ends[0])
        else:
            self._body = self._new_body(self._cost)
        self._blends: OrderedDict[float, Blend] = OrderedDict()
        self._waiting: list[Job] = []
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._turn = threading.Lock()

    @classmethod
    def load(cls, path: Path | str = BUILTIN, profile: str | None = None) -> Router:
        """Reads a router's folder, or `builtin` (default): the one that ships with hopgate.

        Raises:
            ValueError: If the folder is no router, its parts do not fit each other, or it has no
                such profile.
            RuntimeError: If a file is missing or was altered.
        """
        return cls(read(path), profile)

    def route(self, questions: Sequence[str], alpha: float) -> list[Probabilities]:
        """Probabilities of A (no retrieval), B (one) and C (several) for each question.

        Args:
            questions: Non-empty strings; cut at 384 tokens.
            alpha: From 0 (cheapest) to 1 (most reliable).

        Returns:
            One `{"A": …, "B": …, "C": …}` a question, in order; each sums to 1.

        Raises:
            ValueError: If α is not in [0, 1] or a question is empty.
        """
        return self.route_alphas(questions, [alpha])[0]

    def route_alphas(
        self, questions: Sequence[str], alphas: Iterable[float]
    ) -> list[list[Probabilities]]:
        """As `route`, for several α: one list a value of α, in order."""
        checked = [checked_alpha(alpha) for alpha in alphas]
        for at, question in enumerate(questions):
            if not isinstance(question, str) or not question.strip():
                raise ValueError(f"question {at + 1} is empty; give a text to route")
        if not questions or not checked:
            return [[] for _ in checked]
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(questions))]
        if not self.one_pass and len(checked) > 1:
            return [self._in_turn(ids, [self._blend(alpha)])[0] for alpha in checked]
        return self._in_turn(ids, [self._blend(alpha) for alpha in checked])

    def doubts(self, questions: Sequence[str]) -> list[str | None]:
        """For each question, why the decision on it deserves no trust; None if it does."""
        english = bool(self.training.get("english", False))
        lengths = [len(found.ids) for found in self._tokenizer.encode_batch(list(questions))]
        return [doubt(q, n, MAX_TOKENS, english) for q, n in zip(questions, lengths, strict=True)]

    def _in_turn(self, ids: list[list[int]], blends: list[Blend]) -> list[list[Probabilities]]:
        """Runs what waits, this job included, unless another thread has done it meanwhile."""
        job = Job(ids, blends, Future())
        with self._lock:
            self._waiting.append(job)
        with self._turn:
            if not job.found.done():
                self._run_waiting()
        return job.found.result()

    def _run_waiting(self) -> None:
        jobs: list[Job] = []
        try:
            with self._lock:
                jobs, self._waiting = self._waiting, []
            for together in _by_body(jobs):
                self._run(together)
        finally:
            for job in jobs:
                if not job.found.done():
                    job.found.set_exception(
                        RuntimeError("routing was interrupted in another thread; ask again")
                    )

    def _run(self, together: list[Job]) -> None:
        """Runs jobs in one pass; each alone if that fails, so that none fails for another."""
        try:
            ids = [row for job in together for row in job.ids]
            features = self._features(together[0].blends[0], ids)
            first = 0
            for job in together:
                rows = features[first : first + len(job.ids)]
                first += len(job.ids)
                job.found.set_result([_probabilities(rows, blend) for blend in job.blends])
        except Exception as error:
            undone = [job for job in together if not job.found.done()]
            if len(together) == 1:
                together[0].found.set_exception(error)
            else:
                for job in undone:
                    self._run([job])

    def _features(self, blend: Blend, ids: list[list[int]]) -> Tensor:
        """[questions, head's width]; questions of like length are run together."""
        import torch

        from hopgate.classifiers.networks import padded

        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        with torch.inference_mode():
            parts = [
                blend.features(*padded([ids[i] for i in order[at : at + BATCH]], self._device))
                for at in range(0, len(order), BATCH)
            ]
            return torch.cat(parts)[torch.tensor(order).argsort()]

    def _blend(self, alpha: float) -> Blend:
        found = self._kept(alpha)
        if found is None:
            with self._building:
                found = self._kept(alpha) or self._new_blend(alpha)
            with self._lock:
                self._blends[alpha] = found
                kept = min(BLENDS, max(1, BLEND_BYTES // max(1, self._body_bytes)))
                while len(self._blends) > kept:
                    self._blends.popitem(last=False)
        return found

    def _kept(self, alpha: float) -> Blend | None:
        with self._lock:
            if alpha in self._blends:
                self._blends.move_to_end(alpha)
            return self._blends.get(alpha)

    def _new_blend(self, alpha: float) -> Blend:
        mixed = {
            name: (1 - alpha) * cost + alpha * self._reliability[name]
            for name, cost in self._cost.items()
        }
        state = self._shared | mixed
        body = self._body or self._new_body(mixed)
        return Blend(body, state["head.weight"], state["head.bias"])

    def _new_body(self, mixed: dict[str, Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        import torch

        from hopgate.classifiers.networks import T5Network, network_from
        from hopgate.classifiers.serving import ServedT5

        with torch.no_grad():
            network = network_from(self._architecture, self._config, self._shared | mixed)
            network.requires_grad_(False)
            if isinstance(network, T5Network):
                return ServedT5(network, half=self.one_pass)
            return network.features

    def _moved(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self._device) for name, tensor in tensors.items()}


def _by_body(jobs: list[Job]) -> list[list[Job]]:
    """Jobs that one pass of the encoder serves, together."""
    groups: dict[int, list[Job]] = {}
    for job in jobs:
        groups.setdefault(id(job.blends[0].features), []).append(job)
    return list(groups.values())


def _probabilities(features: Tensor, blend: Blend) -> list[Probabilities]:
    import torch

    with torch.inference_mode():
        rows = torch.nn.functional.linear(features, blend.weight, blend.bias).softmax(-1)
    return [dict(zip(LABELS, row, strict=True)) for row in rows.tolist()]


def _checked_profile(profile: str | None, profiles: Sequence[str]) -> str:
    if not profiles:
        raise ValueError("this router folder has no cost end; train the router again")
    if profile is not None and profile not in profiles:
        raise ValueError(
            f"the router has no profile {profile!r}; choose one of {', '.join(profiles)}"
        )
    return profile or profiles[0]


_loaded: dict[tuple[Path, str], tuple[int, Router]] = {}
_loading = threading.Lock()


def load_router(path: Path | str = BUILTIN, profile: str | None = None) -> Router:
    """Reads a router once per process; one that was trained again is read anew.

    Arguments and errors are those of `Router.load`.
    """
    folder = router_folder(path).resolve()
    manifest = folder / MANIFEST
    key = folder, _checked_profile(profile, profiles_in(folder))
    with _loading:
        version = manifest.stat().st_mtime_ns if manifest.exists() else 0
        if key not in _loaded or _loaded[key][0] != version:
            _loaded[key] = version, Router.load(folder, key[1])
        return _loaded[key][1]


def checked_alpha(alpha: float) -> float:
    """`alpha` as a float.

    Raises:
        ValueError: If it is not a number from 0 to 1.
    """
    try:
        value = float(alpha)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0 <= value <= 1:
        raise ValueError(f"alpha is {alpha!r}; it must be a number from 0 (cheapest) to 1")
    return value
