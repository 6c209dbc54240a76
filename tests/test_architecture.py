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


def folder_of(module: str) -> str:
    return MODULES[module].parent.name


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


def at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The import statements that run when a module is imported."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from at_import(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for block in ("body", "orelse", "finalbody"):
                yield from at_import(getattr(node, block, []))
            for handler in getattr(node, "handlers", []):
                yield from at_import(handler.body)


def test_every_package_has_a_layer() -> None:
    assert sorted(FOLDERS.values()) == sorted(name for layer in LAYERS for name in layer)
    assert len(MODULES) > 100


@pytest.mark.parametrize("folder", sorted(FOLDERS.values()))
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


def test_no_import_cycle_between_modules() -> None:
    graph = {
        module: {
            target
            for statement in at_import(parsed(module).body)
            for target in imports(module, statement)
            if target != module
        }
        for module in MODULES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " ← ".join(error.args[1]))


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
