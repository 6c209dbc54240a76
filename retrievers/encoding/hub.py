"""Encoders and rerankers from the model hub: found on this machine, or downloaded."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hopgate.common.errors import reason

if TYPE_CHECKING:
    from huggingface_hub import HfApi

HUB_NAMES = {
    "contriever": "facebook/contriever",
    "contriever-msmarco": "facebook/contriever-msmarco",
    "multilingual": "intfloat/multilingual-e5-small",
}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
HUB_TIMEOUT_S = 10.0
"""Seconds to wait for the first reply of the model hub."""
ONNX_GRAPHS = ("onnx/model.onnx", "model.onnx")
"""Where a model's folder has its ONNX graph."""
_FILES = ["*.json", "*.txt", "*.model"]


def graph_of(folder: Path) -> Path | None:
    """Return the ONNX graph in a model's folder, if there is one."""
    return next((each for name in ONNX_GRAPHS if (each := folder / name).is_file()), None)


def weights_of(folder: Path) -> list[Path]:
    """Return the files with a model's weights: safetensors, else its ONNX graph and data."""
    files = sorted(folder.rglob("*.safetensors"))
    if not files and (graph := graph_of(folder)):
        files = sorted(graph.parent.glob(f"{graph.name}*"))
    return files


def cached_snapshot(repo: str) -> Path | None:
    """Find the newest complete download, without using the network."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "snapshots"
    snapshots = sorted(cache.glob("*/"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    return next((folder for folder in snapshots if _is_complete(folder)), None)


def _is_complete(folder: Path) -> bool:
    tokenizer = (folder / "tokenizer.json").exists() or (folder / "vocab.txt").exists()
    return tokenizer and (folder / "config.json").exists() and bool(weights_of(folder))


def hub_model(repo: str) -> Path:
    """Return the folder of any model of the hub, downloading it if needed.

    Raises:
        RuntimeError: The model cannot be downloaded.
    """
    return cached_snapshot(repo) or download(repo, "model")


def download(repo: str, kind: str = "encoder") -> Path:
    """Download a model: its ONNX graph where sentence-transformers is missing, else safetensors.

    Raises:
        RuntimeError: It cannot be downloaded.
    """
    from huggingface_hub import HfApi, snapshot_download

    torch = kind != "encoder" or find_spec("sentence_transformers") is not None
    weights = ["*.safetensors"] if torch else [f"{name}*" for name in ONNX_GRAPHS]
    try:
        return Path(
            snapshot_download(
                repo,
                revision=_safetensors_revision(HfApi(), repo) if torch else "main",
                allow_patterns=[*_FILES, *weights],
                etag_timeout=HUB_TIMEOUT_S,
            )
        )
    except Exception as error:  # the hub client's errors have no common base class
        embedded = ", or use the embedded minilm" if kind == "encoder" else ""
        raise RuntimeError(
            f"{kind} {repo} cannot be downloaded from the model hub ({reason(error, 300)}): check "
            f"the connection, use a local folder{embedded}"
        ) from error


def _safetensors_revision(api: HfApi, repo: str) -> str:
    """Find the revision with safetensors: the main one, or the hub's own conversion of it.

    facebook/contriever and others were published as pickles only; the hub's conversion bot
    offers the same weights as safetensors in a pull request, where transformers looks too.
    """
    info = api.model_info(repo, timeout=HUB_TIMEOUT_S)
    if any(file.rfilename.endswith(".safetensors") for file in info.siblings or []):
        return info.sha or "main"
    for change in api.get_repo_discussions(repo, author="SFconvertbot"):
        if change.is_pull_request and change.status == "open" and change.git_reference:
            return change.git_reference
    raise FileNotFoundError("no safetensors weights")
