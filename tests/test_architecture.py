"""Imports go one way between the packages of hopgate, without cycles."""

import ast
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]

LAYERS = (
    ("app",),
    ("evaluation", "server"),
    ("graphs",),
    ("nodes",),
    ("retrievers", "classifiers", "models"),
    ("common",),
)
"""A package imports itself and packages further down, never one beside or above it."""


def modules() -> dict[str, Path]:
    """The source files by the names of their modules."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).glob("*.py")):
            found[package if path.stem == "__init__" else f"{package}.{path.stem}"] = path
    return found


MODULES = modules()


ROOMS = sorted({folder.split("/")[0] for folder in FOLDERS.values()})


def folder_of(module: str) -> str:
    """The top-level folder of a module."""
    return MODULES[module].relative_to(ROOT).parts[0]


def imports(module: str, tree: ast.AST) -> Iterator[str]:
    """The modules of hopgate that an import statement names, also by a name it takes from them."""
    package = module if MODULES[module].stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, (above, node.module)))
            names = [f"{source}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            while name and name not in MODULES:  # a class or a function of a module
                name = name.rpartition(".")[0]
            if name:
                yield name


def parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def test_every_package_has_a_layer() -> None:
    assert sorted(name for layer in LAYERS for name in layer) == ROOMS
    assert len(MODULES) > 100


@pytest.mark.parametrize("folder", ROOMS)
def test_a_package_imports_only_packages_below_it(folder: str) -> None:
    """Imports inside functions and for type checking count too."""
    level = next(at for at, layer in enumerate(LAYERS) if folder in layer)
    allowed = {folder, *(name for layer in LAYERS[level + 1 :] for name in layer)}
    wrong = [
        f"{module} imports {target}"
        for module in MODULES
        if folder_of(module) == folder
        for target in imports(module, parsed(module))
        if folder_of(target) not in allowed
    ]
    assert wrong == []


def cycle(graph: dict[str, set[str]]) -> str:
    """One cycle of a graph as text, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " ← ".join(error.args[1])
    return ""


def test_no_import_cycle_between_modules() -> None:
    """Imports inside functions and for type checking count too."""
    assert not cycle({each: {*imports(each, parsed(each))} - {each} for each in MODULES})


@pytest.mark.parametrize("folder", ROOMS)
def test_no_import_cycle_between_the_rooms_of_a_folder(folder: str) -> None:
    inside = {each: MODULES[each].parent for each in MODULES if folder_of(each) == folder}
    inside = {each: room for each, room in inside.items() if room != ROOT / folder}
    graph: dict[str, set[str]] = {}
    for module, room in inside.items():
        targets = {inside[target] for target in imports(module, parsed(module)) if target in inside}
        graph.setdefault(room.name, set()).update(str(each.name) for each in targets - {room})
    assert not cycle(graph)


@pytest.mark.parametrize("folder", sorted(FOLDERS.values()))
def test_a_folder_is_short_enough_to_read_as_a_table_of_contents(folder: str) -> None:
    files = [each for each in (ROOT / folder).glob("*.py") if each.stem != "__init__"]
    assert len(files) <= 15


PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_nothing_is_pickled_or_unpickled(module: str) -> None:
    """What reads a pickle runs the code in it."""
    wrong = []
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Import):
            wrong += [each.name for each in node.names if each.name.split(".")[0] in PICKLES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PICKLES:
            wrong += [each.name for each in node.names if each.name != "UnpicklingError"]
        elif isinstance(node, ast.Call):
            named = {each.arg: ast.unparse(each.value) for each in node.keywords}
            if named.get("allow_pickle", "False") != "False":
                wrong.append(ast.unparse(node))
            if ast.unparse(node.func).endswith("torch.load"):
                wrong += [] if named.get("weights_only") == "True" else [ast.unparse(node)]
    assert wrong == []
