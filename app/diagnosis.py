"""The checks of `hopgate doctor`: what is installed, usable or missing, and how to get it."""

import importlib.util
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hopgate.common.errors import one_line

if TYPE_CHECKING:
    from hopgate.classifiers.drift import Drift

REACH_SECONDS = 3.0
DOCUMENT_PACKAGES = {
    "documents (.pdf)": "pypdf",
    "documents (.html)": "beautifulsoup4",
    "documents (.docx)": "mammoth",
    "documents (.rst)": "docutils",
    "index sync --watch": "watchfiles",
}


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        name: What was checked.
        ok: Whether it is usable.
        needed: Whether hopgate cannot answer without it.
        found: What was found.
        advice: What to do; empty if nothing needs doing.
    """

    name: str
    ok: bool
    needed: bool
    found: str
    advice: str = ""


def run(
    questions: Path | None = None, router: str = "builtin", profile: str = "auto"
) -> list[Check]:
    """Run all checks; nothing is downloaded and no model is called.

    Args:
        questions: JSONL with `question`: are they like those that the router knows? None: no check.
        router: The router of that check.
        profile: Its profile; `auto`: as for the configured model.

    Raises:
        ValueError: The questions cannot be read, or the router cannot be used.
    """
    return [
        Check("python", True, True, platform.python_version()),
        _package("onnxruntime", "onnxruntime", needed=True, advice="pip install onnxruntime"),
        _package("faiss", _faiss_package(), needed=True, advice="pip install 'hopgate[cpu]'"),
        _package("tantivy", "tantivy", needed=True, advice="pip install tantivy"),
        _attempt("encoder minilm", _encoder, needed=True),
        _attempt("router", _router, needed=True),
        *_profile(),
        *_questions(questions, router, profile),
        _attempt("sample index", _sample, needed=True),
        *_models(),
        *(
            _package(name, package, advice="pip install 'hopgate[documents]'")
            for name, package in DOCUMENT_PACKAGES.items()
        ),
        _package("torch (training)", "torch", advice="pip install 'hopgate[train]'"),
        _package("langgraph dev", "langgraph-api", advice="pip install 'langgraph-cli[inmem]'"),
    ]


def _package(name: str, distribution: str, *, advice: str, needed: bool = False) -> Check:
    try:
        return Check(name, True, needed, f"{distribution} {version(distribution)}")
    except PackageNotFoundError:
        return Check(name, False, needed, "not installed", advice)


def _faiss_package() -> str:
    try:
        version("faiss-gpu")
    except PackageNotFoundError:
        return "faiss-cpu"
    return "faiss-gpu"


def _attempt(name: str, look: Callable[[], str], *, needed: bool) -> Check:
    try:
        return Check(name, True, needed, look())
    except (ValueError, RuntimeError, OSError) as error:
        return Check(name, False, needed, "not usable", one_line(error))


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
    return [
        Check(
            "router's profile",
            advice is None,
            False,
            f"{profile} for {model}, α = {alpha:g}",
            advice or "",
        )
    ]


def _questions(path: Path | None, name: str, profile: str) -> list[Check]:
    """Compare questions, if there are any, with those that a router was trained on."""
    if path is None:
        return []
    from hopgate.classifiers.drift import MIN_QUESTIONS, drift
    from hopgate.classifiers.profiles import chosen_profile
    from hopgate.classifiers.router import load_router
    from hopgate.common.files import read_jsonl, required_text
    from hopgate.models import chat

    expected = "JSON lines with a `question` in each row"
    asked, _ = read_jsonl(path, lambda row, _: required_text(row, "question"), expected=expected)
    chosen = chosen_profile(name, profile, chat.resolve("auto") if profile == "auto" else "")
    router = load_router(name, chosen)
    title = f"questions ({router.profile})"
    if router.known is None:
        advice = "run tools/redial.py with its training questions, or train it again"
        return [Check(title, False, False, "the router has no summary of its training", advice)]
    found = drift(router, router.known, asked)
    if found.unlike is None:
        few = f"{found.now.questions} different questions are too few to tell; at least"
        return [Check(title, False, False, f"{few} {MIN_QUESTIONS}", "ask again with more")]
    advice = "label some and try `hopgate improve` (docs/improving.md)" if found.unlike else ""
    return [Check(title, not found.unlike, False, _compared(found), advice)]


def _compared(found: "Drift") -> str:
    reasons = f"unlike the training's: {', '.join(found.unlike or [])}"
    verdict = reasons if found.unlike else "like the training's"
    indexes = ", ".join(
        f"{name} {found.index[name]:.2f} (chance up to {found.chance[name]:.2f})"
        for name in found.index
    )
    now, known = found.now, found.known
    labels = ", ".join(
        f"{label} {now.labels[label]:.0%} ({known.labels[label]:.0%})" for label in now.labels
    )
    return (
        f"{now.questions:,} {verdict}; stability index: {indexes}; labels now (training): "
        f"{labels}; doubted: {now.doubted:.0%} ({known.doubted:.0%})"
    )


def _sample() -> str:
    from hopgate.retrievers.index import check_index
    from hopgate.retrievers.sources import sample_path

    return f"{check_index(sample_path())['passages']} passages"


def _models() -> list[Check]:
    """Check both kinds of chat model; one working model is enough."""
    local = _attempt("model local:smollm2", _local, needed=False)
    remote = _attempt("model openai:NAME", _openai, needed=False)
    if local.ok or remote.ok:
        return [local, remote]
    return [local._replace(needed=True), remote._replace(needed=True)]


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
    try:
        reply = httpx.get(
            f"{configured.rstrip('/')}/models",
            headers={"Authorization": f"Bearer {api_key() or 'none'}"},
            timeout=REACH_SECONDS,
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RuntimeError(
            f"OPENAI_BASE_URL {shown} did not answer ({type(error).__name__}); "
            "start it or correct the URL"
        ) from error
    if reply.status_code in (401, 403):
        raise RuntimeError(f"{shown} refused the key; check OPENAI_API_KEY")
    if reply.is_error:
        raise RuntimeError(
            f"{shown}/models answered {reply.status_code}; is /v1 missing from OPENAI_BASE_URL?"
        )
    return f"{shown} answers"
