"""Help for tests of indexes: an encoder without weights, and a writer that can be killed."""

import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopgate.common.files import write_atomic
from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.building import add_passages, build_from_passages, compact, delete, sync
from hopgate.retrievers.encoders import Encoder, passage_text
from hopgate.retrievers.index.reader import Index


class HashEncoder(Encoder):
    """Gives each text a vector of its own, drawn at random from its hash."""

    def __init__(self, dimension: int = 16) -> None:
        self.name, self.fingerprint, self.dimension = "hash", "0" * 64, dimension
        self.pooling, self.normalize, self.max_tokens = "none", False, 0
        self.query_prefix = self.passage_prefix = ""
        self.encoded = 0

    def __getattr__(self, name: str) -> Any:
        """Other things that an encoder is described by are not set."""
        if name.startswith("_"):
            raise AttributeError(name)
        return None

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([self._vector(text) for text in texts], dtype=np.float32)

    def encode_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        self.encoded += len(passages)
        return self.encode_queries([passage_text(passage) for passage in passages])

    def _vector(self, text: str) -> NDArray[np.float64]:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        return np.random.default_rng(seed).normal(size=self.dimension)


def stamped(stamp: int, sources: int = 5) -> list[Passage]:
    """Passages of some documents, all of which name the same stamp."""
    return [
        make_passage(f"Doc {number}", f"stamp {stamp} of document {number}", f"{number}.txt")
        for number in range(sources)
    ]


def texts(index: Path, encoder: Encoder) -> list[str]:
    """All texts of an index, by way of a search."""
    (hits,) = Index.open(index, encoder).search(["stamp"], k=1000, mode="dense")
    return sorted(hit["text"] for hit in hits)


def files(index: Path) -> dict[str, bytes]:
    """The content of every file of an index but its lock."""
    return {
        str(file.relative_to(index)): file.read_bytes()
        for file in index.rglob("*")
        if file.is_file() and file.name != ".lock"
    }


def flip(file: Path, at: int = -1) -> None:
    """Flip one bit."""
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def edit_manifest(index: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the manifest says."""
    manifest = json.loads((index / "manifest.json").read_text())
    change(manifest)
    (index / "manifest.json").write_text(json.dumps(manifest))


def one_of(index: Path, pattern: str) -> Path:
    """One of the files of an index, such as `vectors/*.faiss`."""
    return sorted(index.glob(pattern))[0]


# Writers that are killed

CALLS = ((os, "fsync"), (os, "replace"), (Path, "replace"), (Path, "unlink"), (shutil, "rmtree"))
"""What a change does to the disk; a writer can be killed before any of these calls."""


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_call(number: int) -> None:
    """Let the process die before one of the calls that change the disk, counted from 1."""
    left = iter(range(number - 1, -1, -1))

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            if next(left, 1) == 0:
                die()
            return real(*given, **named)

        return call

    for where, name in CALLS:
        setattr(where, name, counted(getattr(where, name)))


KINDS = ("build", "add", "delete", "sync", "compact")


def change(kind: str, index: Path, at_call: int = 0, _: Connection | None = None) -> None:
    """Make a change; the process dies before one of the calls that change the disk."""
    if at_call:
        die_at_call(at_call)
    encoder = HashEncoder()
    if kind == "build":
        build_from_passages(stamped(1, 7), index, encoder, replace=True)
    elif kind == "add":
        add_passages(stamped(1, 3), index, encoder)
    elif kind == "delete":
        delete(index, ["2.txt"])
    elif kind == "sync":
        sync(index.parent / "docs", index, encoder)
    else:
        compact(index)


def start(work: Callable[..., None], *given: object) -> tuple[ForkServerProcess, Connection]:
    """Run `work` in a process of its own, forked from one that has imported this module.

    Returns:
        The process, and what receives the last argument of `work` sends.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "faiss"])
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(*given, sending), daemon=True)
    process.start()
    sending.close()
    return process, receiving


def keep_reading(index: Path, seen: Connection) -> None:
    """Open and search an index for ever; send the texts found and the time taken, or an error."""
    encoder = HashEncoder()
    while True:
        started = time.monotonic()
        try:
            opened = Index.open(index, encoder)
            for mode in ("dense", "bm25", "hybrid"):
                (hits,) = opened.search(["stamp document"], 99, mode)
                seen.send(([hit["text"] for hit in hits], time.monotonic() - started))
        except BaseException as error:
            seen.send((repr(error), 0.0))
            raise


# A stranger's index


def declare(index: Path, name: str) -> None:
    """Let the manifest say that a file is as it should be: the manifest is the stranger's too."""
    content = (index / name).read_bytes()
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit_manifest(index, lambda manifest: manifest["files"].update({name: entry}))


def crafted(content: bytes, chance: random.Random) -> bytes:
    """Damage a file as no accident would: most often in its header, or where it has lengths."""
    kind = chance.choice(["flip", "byte", "number", "number", "cut", "grow", "zeros"])
    at = chance.randrange(min(len(content), chance.choice([64, 512, 1 << 30])))
    found = bytearray(content)
    if kind == "flip":
        found[at] ^= 1 << chance.randrange(8)
    elif kind == "byte":
        found[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
    elif kind == "number":
        size = chance.choice([4, 8])
        number = chance.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1])
        at -= at % 4
        found[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
    elif kind == "cut":
        del found[at:]
    elif kind == "grow":
        found[at:at] = bytes(chance.choice([1, 8, 4096]))
    else:
        found[at : at + 64] = bytes(len(found[at : at + 64]))
    return bytes(found)


def keep_attacking(index: Path, pattern: str, count: int, told: Connection) -> None:
    """Open and search an index with crafted files, one after the other; send each outcome."""
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    encoder = HashEncoder()
    manifest = (index / "manifest.json").read_bytes()
    for number in range(count):
        chance = random.Random(number)
        name = chance.choice(sorted(str(f.relative_to(index)) for f in index.glob(pattern)))
        whole = (index / name).read_bytes()
        write_atomic(index / name, crafted(whole, chance))  # the old one may still be mapped
        declare(index, name)
        try:
            outcome = _attacked(index, encoder)
        except (ValueError, RuntimeError) as error:
            known = "damaged or incomplete" in str(error)
            outcome = "damaged" if known else f"{error!r} of {number}, {name}"
        except BaseException as error:
            outcome = f"bare {error!r} of {number}, {name}"
        told.send(outcome)
        write_atomic(index / name, whole)
        write_atomic(index / "manifest.json", manifest)


def _attacked(index: Path, encoder: Encoder) -> str:
    opened = Index.open(index, encoder)
    for mode in ("dense", "bm25", "hybrid"):
        for where in (None, {"source": "1.txt"}, {"source": "*.txt", "page": 1}):
            opened.search(["stamp document", "text 3"], 5, mode, where)
    opened._words.keys()
    copy = index.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(index, copy)
    delete(copy, ["1.txt"])
    add_passages([make_passage("T", "something new", "2.txt")], copy, encoder)
    compact(copy)
    return "fine"


def attack(index: Path, pattern: str, count: int) -> Counter[str]:
    """Count the outcomes of crafted files; they are fewer than `count` if one kills or hangs."""
    outcomes: Counter[str] = Counter()
    process, told = start(keep_attacking, index, pattern, count)
    with suppress(EOFError):
        while told.poll(60):
            outcomes[told.recv()] += 1
    process.kill()
    process.join()
    return outcomes
