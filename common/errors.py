"""Error messages: an error's text on one line, and the extra that is missing."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hopgate.common.files import shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

TRAINING = ("torch", "transformers", "sentence_transformers", "onnx", "onnxscript")
STATISTICS = ("scipy", "sklearn")


def one_line(text: object) -> str:
    """Return a text, or an error's text, with its lines and spaces joined."""
    return " ".join(str(text).split())


def reason(error: BaseException, limit: int | None = None) -> str:
    """Return an error's text on one line, cut to `limit` characters; its type if it has none."""
    return one_line(error)[:limit] or type(error).__name__


def require(what: str, *modules: str, extra: str = "train") -> None:
    """Check that modules are installed, without importing them.

    Args:
        what: The feature that needs them, as the message's subject.
        modules: Their import names.
        extra: The extra of hopgate that brings them.

    Raises:
        RuntimeError: One is missing; the message names the extra.
    """
    if missing := [name for name in modules if find_spec(name) is None]:
        raise RuntimeError(f"{what} needs {missing[0]}: pip install 'hopgate[{extra}]'")


def explain(error: ValueError, named: Callable[[str], str] = str) -> str:
    """Return one line about wrong settings.

    Args:
        error: The error that pydantic raised; the text of any other is returned as it is.
        named: Returns the name to show for a field.
    """
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)

    def described(each: ErrorDetails) -> str:
        name = named(".".join(map(str, each["loc"])) or "context")
        if each["type"] == "missing":
            return f"{name} is missing"
        return f"{name} is {shown(each['input'])}: {each['msg'].removeprefix('Value error, ')}"

    return "; ".join(map(described, error.errors(include_url=False)))
