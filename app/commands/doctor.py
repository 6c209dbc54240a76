"""`hopgate doctor`: which parts are installed and usable, and how to get those that are missing."""

import importlib.util
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hopgate.commands.options import command
from hopgate.common.errors import one_line
from hopgate.terminal import pages

if TYPE_CHECKING:
    from hopgate.classifiers.drift import Drift, Summary
    from hopgate.classifiers.router import Router

REACH_SECONDS = 3.0
TRAIN, DOCUMENTS = "pip install 'hopgate[train]'", "pip install 'hopgate[documents]'"
OPTIONAL_PACKAGES = {
    "documents (.pdf)": ("pypdf", DOCUMENTS),
    "documents (.html)": ("html-to-markdown", DOCUMENTS),
    "documents (.docx)": ("mammoth", DOCUMENTS),
    "documents (.rst)": ("docutils", DOCUMENTS),
    "torch (training)": ("torch", TRAIN),
    "langgraph dev": ("langgraph-api", "pip install 'langgraph-cli[inmem]'"),
}


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        name: The thing checked.
        ok: Whether it is usable.
        needed: Whether hopgate cannot answer without it.
        found: The finding.
        advice: What to do; empty if nothing needs doing.
    """

    name: str
    ok: bool
    needed: bool
    found: str
    advice: str = ""


@command()
def doctor(
    *, questions: Path | None = None, router: str = "builtin", profile: str = "auto"
) -> None:
    """Show which parts are installed and usable, and how to get those that are missing.

    Args:
        questions: JSONL, rows: question. Are they like those that the router was trained on?
        router: The router for --questions: a folder, or builtin.
        profile: Its profile. auto: the one for the configured model.
    """
    with pages.err.status("checking"):
        checks = _checks(questions, router, profile)
    pages.output(checks, _show)
    if any(check.needed and not check.ok for check in checks):
        raise SystemExit(1)


def _show(checks: Sequence[Check]) -> None:
    for number, check in enumerate(checks, start=1):
        mark = ("✓", "green") if check.ok else ("✗", "red") if check.needed else ("–", "yellow")
        pages.line(mark, " ", (check.name, "bold"), f": {check.found}")
        if check.advice and check.advice not in [later.advice for later in checks[number:]]:
            pages.line(f"    {check.advice}")


def _checks(questions: Path | None, router: str, profile: str) -> list[Check]:
    """Run all checks; nothing is downloaded and no model is called.

    Raises:
        ValueError: The questions cannot be read, or the router cannot be used.
    """
    faiss = "faiss-gpu" if _version("faiss-gpu") else "faiss-cpu"
    return [
        Check("python", True, True, platform.python_version()),
        _package("onnxruntime", "onnxruntime", "pip install onnxruntime", needed=True),
        _package("faiss", faiss, "pip install 'hopgate[cpu]'", needed=True),
        _package("tantivy", "tantivy", "pip install tantivy", needed=True),
        _attempt("encoder minilm", _encoder),
        _attempt("router", _router),
        *_profile(),
        *([] if questions is None else _questions(questions, router, profile)),
        _attempt("sample index", _sample),
        *_models(),
        *(_package(name, *package) for name, package in OPTIONAL_PACKAGES.items()),
    ]


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _package(name: str, distribution: str, advice: str, *, needed: bool = False) -> Check:
    if found := _version(distribution):
        return Check(name, True, needed, f"{distribution} {found}")
    return Check(name, False, needed, "not installed", advice)


def _attempt(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, True, look())
    except (ValueError, RuntimeError, OSError) as error:
        return Check(name, False, True, "not usable", one_line(error))


def _encoder() -> str:
    from hopgate.retrievers.encoders import resolve_encoder

    return f"weights {resolve_encoder('minilm').fingerprint[:12]} verified"


def _router() -> str:
    from hopgate.classifiers.checkpoint import profiles_in

    return f"profiles {', '.join(profiles_in())}; weights verified"


def _profile() -> list[Check]:
    """Check which LLM the router takes the configured model for."""
    from hopgate.classifiers.profiles import chosen_profile, default_alpha
    from hopgate.models import chat
    from hopgate.nodes.route import guessed

    try:
        model = chat.resolve("auto")
        profile = chosen_profile("builtin", "auto", model) or "none"
        alpha = default_alpha("builtin", "auto", model)
    except (ValueError, RuntimeError):  # their own checks say why
        return []
    advice = guessed(model, profile)
    found = f"{profile} for {model}, α = {alpha:g}"
    return [Check("router's profile", advice is None, False, found, advice or "")]


def _questions(path: Path, name: str, profile: str) -> list[Check]:
    """Compare questions with those of a router's training, and those of its saved promises."""
    from hopgate.classifiers.drift import Summary
    from hopgate.classifiers.profiles import chosen_profile
    from hopgate.classifiers.router import load_router
    from hopgate.classifiers.saved_alphas import saved_for
    from hopgate.common.files import read_jsonl, required_text
    from hopgate.models import chat

    expected = "JSON lines with a `question` in each row"
    asked = read_jsonl(path, lambda row, _: required_text(row, "question"), expected=expected)
    chosen = chosen_profile(name, profile, chat.resolve("auto") if profile == "auto" else "")
    router = load_router(name, chosen)
    title = f"questions ({router.profile})"
    advice = "label some and try `hopgate improve` (docs/improving.md)"
    if router.known is None:
        redial = "run tools/redial.py with its training questions, or train it again"
        found = [Check(title, False, False, "the router has no summary of its training", redial)]
    else:
        found = [_drift(title, router, router.known, asked, "the training's", advice)]
    for saved, setting in saved_for(name).items():
        if setting["profile"] == router.profile and "known" in setting:
            about = f"the promise of --alpha {saved}"
            known, again = Summary(**setting["known"]), f"`hopgate calibrate --save {saved}` again"
            found.append(_drift(about, router, known, asked, "its labels", again))
    return found


def _drift(
    title: str, router: "Router", known: "Summary", asked: list[str], like: str, advice: str
) -> Check:
    from hopgate.classifiers.drift import MIN_QUESTIONS, drift

    found = drift(router, known, asked)
    if found.unlike is None:
        few = f"{found.now.questions} different questions are too few to tell; at least"
        return Check(title, False, False, f"{few} {MIN_QUESTIONS}", "ask again with more")
    return Check(
        title, not found.unlike, False, _compared(found, like), advice if found.unlike else ""
    )


def _compared(found: "Drift", like: str) -> str:
    reasons = f"unlike {like}: {', '.join(found.unlike or [])}"
    verdict = reasons if found.unlike else f"like {like}"
    indexes = ", ".join(
        f"{name} {found.index[name]:.2f} (chance up to {found.chance[name]:.2f})"
        for name in found.index
    )
    now, known = found.now, found.known
    labels = ", ".join(
        f"{label} {now.labels[label]:.0%} ({known.labels[label]:.0%})" for label in now.labels
    )
    return (
        f"{now.questions:,} {verdict}; stability index: {indexes}; labels now (then): "
        f"{labels}; doubted: {now.doubted:.0%} ({known.doubted:.0%})"
    )


def _sample() -> str:
    from hopgate.retrievers.index.reader import check_index
    from hopgate.retrievers.sources import sample_path

    return f"{check_index(sample_path())['passages']} passages"


def _models() -> list[Check]:
    """Check both kinds of chat model; one that works is enough."""
    both = [_attempt("model local:smollm2", _local), _attempt("model openai:NAME", _openai)]
    needed = not any(each.ok for each in both)
    return [each._replace(needed=needed) for each in both]


def _local() -> str:
    from hopgate.models import local

    local.weights_path()
    if importlib.util.find_spec("xllamacpp") is None:
        raise RuntimeError(f"xllamacpp is not installed: {local.INSTALL}")
    return "weights verified; tiny: good for trying hopgate, not for its answers"


def _openai() -> str:
    from hopgate.models.chat import api_key, base_url, without_password

    configured = base_url()
    if configured is None:
        if api_key():
            return "OPENAI_API_KEY is set (not tried: it may cost money)"
        raise ValueError("set OPENAI_API_KEY, or OPENAI_BASE_URL for your own server")
    import httpx

    shown = without_password(configured)
    headers = {"Authorization": f"Bearer {api_key() or 'none'}"}
    try:
        reply = httpx.get(
            f"{configured.rstrip('/')}/models", headers=headers, timeout=REACH_SECONDS
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RuntimeError(
            f"OPENAI_BASE_URL {shown} did not answer ({type(error).__name__}); "
            "start it or correct the URL"
        ) from error
    if reply.is_error:
        raise RuntimeError(
            f"{shown}/models answered {reply.status_code}; check OPENAI_API_KEY, and that "
            "OPENAI_BASE_URL ends with /v1"
        )
    return f"{shown} answers"
