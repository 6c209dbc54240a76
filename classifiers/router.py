"""Routing: the probabilities of A, B and C for a question at any α.

θ(α) = (1 − α)·θ_cost + α·θ_reliability over every parameter in which cost and reliability weights
differ (Flare-Aug, section 3). The probabilities are the softmax over the three label rows; no text
is generated. If only the label heads differ, all α share one pass of the encoder.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hopgate.classifiers.checkpoint import (
    BUILTIN_FOLDER,
    COST,
    HEAD,
    MANIFEST,
    MAX_TOKENS,
    Checkpoint,
    profiles_in,
    read,
    router_folder,
)
from hopgate.classifiers.doubts import doubt
from hopgate.common.cache import Cache
from hopgate.common.strategies import LABELS

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 64
BLENDS = 8
"""Maximum number of blends kept in memory."""
BLEND_BYTES = 512 * 2**20
"""Maximum memory for blends; the one in use always stays."""

Probabilities = dict[str, float]


class Blend(NamedTuple):
    """The network at one α."""

    features: Callable[[Tensor, Tensor], Tensor]
    weight: Tensor
    bias: Tensor


class Job(NamedTuple):
    """A waiting call of `route`."""

    ids: list[list[int]]
    blends: list[Blend]
    found: Future[list[list[Probabilities]]]


class Router:
    """Route questions with one network and two sets of weights, blended per request.

    Safe to use from many threads at once, with different α. Calls that arrive while another
    one runs become one batch, with one pass of the encoder if their α allow it. Runs on a GPU if
    there is one.

    Attributes:
        source: The architecture, `t5` or `minilm`; decisions carry it.
        profile: The LLM that the cost weights were trained for, e.g. `flan-t5-xl`.
        profiles: All LLMs that the folder has cost weights for.
        one_pass: Whether all α share one pass of the encoder, so that many cost as much as one.
        training: Data, recipe and figures of the training.
    """

    def __init__(self, checkpoint: Checkpoint, profile: str | None = None) -> None:
        """Create a router from weights in memory; `Router.load` reads them from disk.

        Args:
            checkpoint: With reliability weights and the cost weights of at least one LLM.
            profile: The LLM whose weights to use; default: the first.

        Raises:
            ValueError: Weights are missing or do not fit the configuration.
        """
        import torch

        from hopgate.classifiers.networks import network_from

        self.source = checkpoint.architecture
        self.training = checkpoint.training
        self.profiles = checkpoint.profiles
        self.profile = _checked_profile(profile, self.profiles)
        self._tokenizer = checkpoint.tokenizer
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        cost, reliability = map(checkpoint.state, checkpoint.blended_parts(self.profile))
        self._architecture, self._config = checkpoint.architecture, checkpoint.config
        differing = checkpoint.parts[COST + self.profile].keys()
        self._shared = self._moved(checkpoint.parts["shared"])
        self._cost, self._reliability = (
            self._moved({name: weights[name] for name in differing})
            for weights in (cost, reliability)
        )
        self.one_pass = all(name.startswith(HEAD) for name in self._cost)
        self._body, self._body_bytes = None, 0
        if self.one_pass:
            self._body = self._new_body(self._cost)
        else:
            network_from(checkpoint.architecture, checkpoint.config, cost)  # raises if they misfit
            # Each α has a body of its own, which shares only the vocabulary's embeddings.
            own = (tensor for name, tensor in cost.items() if "shared.weight" not in name)
            self._body_bytes = sum(4 * tensor.numel() for tensor in own)
        self._blends: OrderedDict[float, Blend] = OrderedDict()
        self._waiting: list[Job] = []
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._turn = threading.Lock()

    @classmethod
    def load(cls, path: Path | str = BUILTIN_FOLDER, profile: str | None = None) -> Router:
        """Read a router's folder, by default `builtin`: the one that ships with hopgate.

        Raises:
            ValueError: The folder is not a router's, its parts do not fit each other, or it has
                no such profile.
            RuntimeError: A file is missing or was altered.
        """
        return cls(read(path), profile)

    def route(self, questions: Sequence[str], alpha: float) -> list[Probabilities]:
        """Return the probabilities of A (no retrieval), B (one) and C (several) for each question.

        Args:
            questions: Non-empty strings; cut at 384 tokens.
            alpha: From 0 (cheapest) to 1 (most reliable).

        Returns:
            One `{"A": …, "B": …, "C": …}` for each question, in order; each sums to 1.

        Raises:
            ValueError: α is not in [0, 1] or a question is empty.
        """
        return self.route_alphas(questions, [alpha])[0]

    def route_alphas(
        self, questions: Sequence[str], alphas: Iterable[float]
    ) -> list[list[Probabilities]]:
        """Route at several α, as `route` does: one list for each α, in order."""
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
        """Return for each question why its decision is unreliable; None if it is not."""
        english = bool(self.training.get("english", False))
        lengths = [len(found.ids) for found in self._tokenizer.encode_batch(list(questions))]
        return [doubt(q, n, MAX_TOKENS, english) for q, n in zip(questions, lengths, strict=True)]

    def _in_turn(self, ids: list[list[int]], blends: list[Blend]) -> list[list[Probabilities]]:
        """Run all waiting jobs, unless another thread has run this one in the meantime."""
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
                        RuntimeError("routing was interrupted in another thread; try again")
                    )

    def _run(self, together: list[Job]) -> None:
        """Run jobs in one pass, or each alone if that fails, so that no job fails for another."""
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
        """Return [questions, width of the head]; questions of similar length form a batch."""
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
        found = self._known(alpha)
        if found is None:
            with self._building:
                found = self._known(alpha) or self._new_blend(alpha)
            with self._lock:
                self._blends[alpha] = found
                limit = min(BLENDS, max(1, BLEND_BYTES // max(1, self._body_bytes)))
                while len(self._blends) > limit:
                    self._blends.popitem(last=False)
        return found

    def _known(self, alpha: float) -> Blend | None:
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
    """Group the jobs that one pass of the encoder can serve."""
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
        raise ValueError("this router has no cost weights; train it again")
    if profile is not None and profile not in profiles:
        raise ValueError(
            f"the router has no profile {profile!r}; choose one of {', '.join(profiles)}"
        )
    return profile or profiles[0]


_routers = Cache[Router]()


def load_router(path: Path | str = BUILTIN_FOLDER, profile: str | None = None) -> Router:
    """Load a router once per process, and again after it was trained again.

    Takes the arguments of `Router.load` and raises its errors.
    """
    folder = router_folder(path).resolve()
    chosen = _checked_profile(profile, profiles_in(folder))
    return _routers.get((folder, chosen), lambda: Router.load(folder, chosen), [folder / MANIFEST])


def checked_alpha(alpha: float) -> float:
    """Return α as a float.

    Raises:
        ValueError: It is not a number from 0 to 1.
    """
    try:
        value = float(alpha)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0 <= value <= 1:
        raise ValueError(f"alpha is {alpha!r}; it must be a number from 0 (cheapest) to 1")
    return value
