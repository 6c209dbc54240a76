"""A project's own graph, found through its langgraph.json as a LangGraph server finds it."""

import json
import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from dotenv import dotenv_values

from hopgate.graphs.compiled import AdaptiveGraph

CONFIG = "langgraph.json"


def load(folder: Path) -> AdaptiveGraph | None:
    """Return the first of hopgate's graphs in a folder's langgraph.json.

    Its `env` becomes part of the environment first, where it sets nothing that is set already.

    Returns:
        The graph; None if there is no langgraph.json, or none of its graphs is hopgate's.

    Raises:
        ValueError: The file cannot be read, or names a module or a graph that does not exist.
    """
    path = folder / CONFIG
    if not path.exists():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        graphs = config["graphs"].values()
        named = [each if isinstance(each, str) else each["path"] for each in graphs]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    _set_environment(config.get("env"), folder)
    found = (_graph(each, folder) for each in named)
    return next((each for each in found if isinstance(each, AdaptiveGraph)), None)


def _set_environment(env: str | dict[str, str] | None, folder: Path) -> None:
    values = dotenv_values(folder / env) if isinstance(env, str) else env or {}
    for name, value in values.items():
        os.environ.setdefault(name, value or "")


def _graph(path: str, folder: Path) -> Any:
    module, _, name = path.rpartition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return getattr(_module(module, folder), name)
    except (ImportError, AttributeError, OSError) as error:
        raise ValueError(f"{CONFIG} names {path!r}, which cannot be loaded: {error}") from error


def _module(name: str, folder: Path) -> ModuleType:
    if not name.endswith(".py"):
        return import_module(name)
    spec = spec_from_file_location(Path(name).stem, folder / name)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is not a Python file")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
