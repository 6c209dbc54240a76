"""Versions of a router: replaced in one step, kept and put back; a kill loses nothing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from hopgate.classifiers import versions
from hopgate.classifiers.checkpoint import (
    BUILTIN_FOLDER,
    Checkpoint,
    read,
    router_folder,
    versions_of,
)
from hopgate.classifiers.router import load_router
from hopgate.classifiers.saved_alphas import save_alpha, saved_alpha
from hopgate.classifiers.training.writing import write
from hopgate.nodes.run import resources as named
from hopgate.nodes.run.context import Context

STRIDE = 1 if os.environ.get("HOPGATE_WIDE") else 7
"""A process is killed before every seventh step of a change; HOPGATE_WIDE=1: before each."""


def made(folder: Path, mark: int, overwrite: bool = False) -> Path:
    """A router's folder whose manifest and weights both say `mark`; nothing can be routed."""
    parts = {
        "shared": {"body": np.zeros(2, np.float32)},
        "cost-tiny": {"head.bias": np.full(3, mark, np.float32)},
        "reliability": {"head.bias": np.full(3, mark, np.float32)},
    }
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    write(
        Checkpoint("t5", {}, tokenizer, parts, training={"mark": mark}),
        folder,
        "",
        int8=False,
        overwrite=overwrite,
    )
    return folder


def mark(folder: Path) -> int:
    """Which router is in a folder; fails if its files are of two."""
    found = read(folder)
    (value,) = set(found.parts["cost-tiny"]["head.bias"].tolist())
    assert value == found.training["mark"]
    return int(value)


@pytest.fixture
def router(tmp_path: Path) -> Path:
    return made(tmp_path / "router", 1)


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    return made(tmp_path / "candidate", 2)


def test_a_router_is_replaced_kept_and_put_back_and_forth(router: Path, candidate: Path) -> None:
    found = versions.put(candidate, router)
    assert (mark(router), found.version, found.before) == (2, 2, 1)
    kept = versions_of(router)
    assert [mark(kept / name) for name in ("1", "2")] == [1, 2]
    back = versions.back(router)
    assert (mark(router), back.version, back.before) == (1, 1, None)
    with pytest.raises(ValueError, match="no version before the one in use"):
        versions.back(router)
    assert versions.put(candidate, router) == versions.InUse(router, 3, 1)
    assert mark(router) == 2


def test_a_router_of_before_there_was_a_pointer_still_opens_changes_and_goes_back(
    router: Path, candidate: Path, tmp_path: Path
) -> None:
    """ROUTER was a link to the version in use."""
    (kept := versions_of(router)).mkdir()
    router.rename(kept / "1")
    candidate.rename(kept / "2")
    (kept / "2.json").write_text('{"before": 1, "since": "2026-11-01T08:00:00+00:00"}')
    router.symlink_to("router.versions/2")
    assert mark(router) == 2
    assert versions.put(made(tmp_path / "third", 3), router) == versions.InUse(router, 3, 2)
    assert mark(router) == 3
    assert [versions.back(router).version, mark(router)] == [2, 2]
    assert [versions.back(router).version, mark(router)] == [1, 1]


def test_going_back_skips_a_version_that_was_given_up(
    router: Path, candidate: Path, tmp_path: Path
) -> None:
    versions.put(candidate, router)
    versions.back(router)
    versions.put(made(tmp_path / "third", 3), router)
    assert mark(router) == 3
    versions.back(router)
    assert mark(router) == 1


def test_a_router_that_does_not_exist_is_created_over_the_built_in_one(
    tmp_path: Path, candidate: Path
) -> None:
    new = tmp_path / "place" / "router"
    assert versions.put(candidate, new) == versions.InUse(new, 2, 1)
    assert mark(new) == 2
    assert versions.back(new) == versions.InUse(new, 1, None)
    manifests = [
        (folder / "manifest.json").read_bytes() for folder in (router_folder(new), BUILTIN_FOLDER)
    ]
    assert manifests[0] == manifests[1]


def test_a_router_and_its_versions_can_be_moved(router: Path, candidate: Path) -> None:
    versions.put(candidate, router)
    (elsewhere := router.parent / "elsewhere").mkdir()
    for path in (router, versions_of(router)):
        path.rename(elsewhere / path.name)
    assert mark(elsewhere / "router") == 2


def test_a_link_of_your_own_follows_the_router_and_can_be_replaced(
    router: Path, candidate: Path, tmp_path: Path
) -> None:
    (link := tmp_path / "link").symlink_to(router)
    versions.put(candidate, link)
    assert [mark(link), mark(router)] == [2, 1]
    versions.back(link)
    assert mark(link) == 1
    (other := tmp_path / "other").symlink_to(router)
    versions.put(candidate, router)
    assert mark(other) == 2


def test_a_router_trained_again_in_place_becomes_a_version_too(
    router: Path, candidate: Path, tmp_path: Path
) -> None:
    versions.put(candidate, router)
    with pytest.raises(ValueError, match="exists; choose another folder, or give --overwrite"):
        made(router, 5)
    made(router, 5, overwrite=True)
    assert mark(router) == 5
    versions.put(made(tmp_path / "sixth", 6), router)
    versions.back(router)
    assert mark(router) == 5


@pytest.mark.parametrize("name", ["builtin", str(BUILTIN_FOLDER)])
def test_the_router_that_ships_is_not_replaced(name: str, candidate: Path) -> None:
    with pytest.raises(ValueError, match="ships with hopgate and is not replaced"):
        versions.put(candidate, Path(name))


def test_what_is_no_router_is_neither_replaced_nor_put(tmp_path: Path, candidate: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    (folder / "mine.txt").touch()
    with pytest.raises(ValueError, match="is not a router's folder, so it is not replaced"):
        versions.put(candidate, folder)
    with pytest.raises(ValueError, match="is not a router's folder"):
        versions.put(folder, tmp_path / "router")
    assert not versions_of(tmp_path / "router").exists()


def test_a_change_that_cannot_be_made_changes_nothing(router: Path, candidate: Path) -> None:
    with pytest.raises(ValueError, match="no version before the one in use"):
        versions.back(router)
    assert not versions_of(router).exists()
    versions.put(candidate, router)
    with versions._changing(router), pytest.raises(RuntimeError, match="by another process"):
        versions.put(candidate, router)
    (candidate / "reliability.safetensors").write_bytes(b"other")
    with pytest.raises(RuntimeError, match="was altered"):
        versions.put(candidate, router)
    assert mark(router) == 2


def test_a_damaged_note_of_a_version_is_named(router: Path, candidate: Path) -> None:
    versions.put(candidate, router)
    (versions_of(router) / "2.json").write_text("{")
    with pytest.raises(ValueError, match=r"the version's note .*2\.json"):
        versions.back(router)


def test_saved_alphas_stay_with_their_version(router: Path, candidate: Path) -> None:
    save_alpha(router, "thrifty", {"alpha": 0.3, "profile": "tiny"})
    versions.put(candidate, router)
    with pytest.raises(ValueError, match="neither a number from 0 to 1 nor a saved setting"):
        saved_alpha(router, "thrifty")
    versions.back(router)
    assert saved_alpha(router, "thrifty") == 0.3


# Kills

CHANGES = {"open", "os.rename", "os.mkdir", "os.remove", "shutil.copyfile"}


def killed(at: int, change: Any) -> bool:
    """Make a change in a child process that is gone before its step `at`; False: it had fewer."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = at

    def step(event: str, _: Any) -> None:
        nonlocal left
        left -= event in CHANGES
        if left < 0:
            os._exit(9)

    sys.addaudithook(step)
    try:
        change()
    finally:
        os._exit(0)


def test_a_kill_at_any_step_leaves_one_of_the_two_in_use(tmp_path: Path) -> None:
    old, new = made(tmp_path / "old", 1), made(tmp_path / "new", 2)
    for at in range(0, 200, STRIDE):
        router = tmp_path / str(at) / "router"
        shutil.copytree(old, router)
        if not killed(at, lambda router=router: versions.put(new, router)):
            break
        if mark(router) == 1:
            versions.put(new, router)
        assert mark(router) == 2
        killed(at, lambda router=router: versions.back(router))
        if mark(router) == 2:
            versions.back(router)
        assert mark(router) == 1
    assert 20 < at < 200


# Readers


def test_a_reading_while_others_go_back_and_forth_is_of_one_version(
    router: Path, candidate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hopgate.classifiers import checkpoint

    versions.put(candidate, router)
    read_weights, changes = checkpoint._read_weights, iter([True])

    def slow(path: Path) -> Any:
        if "cost" not in path.name or not next(changes, False):
            return read_weights(path)
        versions.back(router)
        found = read_weights(path)
        versions.put(candidate, router)
        return found

    monkeypatch.setattr(checkpoint, "_read_weights", slow)
    assert mark(router) == 2


def test_a_running_process_takes_over_a_promoted_router_and_the_old_one_again(
    tmp_path: Path,
) -> None:
    router = tmp_path / "router"
    shutil.copytree(BUILTIN_FOLDER, router)
    context = Context(router=str(router), profile="gpt-4o")

    def in_use() -> Any:
        found = named._router(context.router, context.profile, "openai:fake")
        assert load_router(router, "gpt-4o") is found
        return found

    first = in_use()
    assert in_use() is first
    other = Path(shutil.copytree(BUILTIN_FOLDER, tmp_path / "other"))
    manifest = other / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 7'))
    versions.put(other, router)
    assert in_use().training["seed"] == 7
    versions.back(router)
    assert in_use().training["seed"] == 0
