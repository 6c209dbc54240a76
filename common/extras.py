"""What an optional part of hopgate needs, checked before it starts."""

from importlib.util import find_spec

TRAINING = ("torch", "transformers", "sentence_transformers", "onnx", "onnxscript")
STATISTICS = ("scipy", "sklearn")


def require(what: str, *modules: str, extra: str = "train") -> None:
    """Check that modules are installed, without importing them.

    Args:
        what: What needs them, as the message's subject.
        modules: Their import names.
        extra: The extra of hopgate that brings them.

    Raises:
        RuntimeError: One is missing; the message names the extra.
    """
    if missing := [name for name in modules if find_spec(name) is None]:
        raise RuntimeError(f"{what} needs {missing[0]}: pip install 'hopgate[{extra}]'")
