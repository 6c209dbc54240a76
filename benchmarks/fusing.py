"""Ways to fuse BM25 and vectors, on questions with identifiers and without.

    python benchmarks/fusing.py --data FOLDER [--django HTML] [--python HTML] [--keep FOLDER]

FOLDER is that of retrieval_quality.py and languages.py. HTML is the documentation of Django or
Python as Debian's python-django-doc and python3-doc install it; a part of its pages is indexed. The
indexes stay in the folder that --keep names, and are used again.

The first table is for choosing, the second for reporting; no collection with questions about names
is in both. Every way gets the same two rankings of 100, and prints recall@1 / recall@5 for each
set. A third table has hybrid's differences to reciprocal ranks and to BM25, with the 95% interval
of a paired bootstrap over the questions.
"""

import argparse
import html
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import languages
import lookalikes
import numpy as np
import retrieval_quality as quality

from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.building import build_from_passages, build_index
from hopgate.retrievers.hybrid import CANDIDATES, Scored, dense_weight, fuse
from hopgate.retrievers.index.reader import Index, load_index

SETS = Path(__file__).parent / "questions"
LIBRARY = tuple(
    re.findall(
        r"\S+",
        "os.path shutil json csv re collections itertools functools pathlib tempfile glob fnmatch "
        "random statistics heapq bisect copy pprint textwrap string datetime calendar zipfile "
        "tarfile gzip hashlib hmac secrets time argparse getpass queue threading select signal "
        "html urllib.parse uuid socketserver shlex configparser base64 binascii struct codecs "
        "difflib",
    )
)
Asked = tuple[str, Iterable[str], bool]
"""A question, the ids of its passages, and whether all are wanted."""


class Row(NamedTuple):
    """A question's two rankings."""

    wanted: frozenset[str]
    every: bool
    dense: Scored[str]
    bm25: Scored[str]
    counts: dict[str, int]
    """In how many passages each word of the question is."""

    def rare(self, most: int) -> bool:
        """Whether a word is in so few passages."""
        return any(0 < each <= most for each in self.counts.values())


def passages_of(index: Index) -> list[Passage]:
    keys = index._words.keys().tolist()
    read = zip(keys, index._words.read(keys), strict=True)
    return [stored.passage(key) for key, stored in read]


def of_page(passages: Sequence[Passage], *ends: str) -> list[Passage]:
    return [each for each in passages if each["source"].endswith(ends)]


def ids(passages: Iterable[Passage]) -> list[str]:
    return [each["id"] for each in passages]


def django(pages: Path, passages: list[Passage]) -> Iterator[tuple[str, list[Asked]]]:
    cves = defaultdict(list)
    notes = (each for each in passages if re.search(r"releases/\d", each["source"]))
    for each in notes:  # not the list of them all
        for name in set(re.findall(r"CVE-\d{4}-\d+", each.get("section", "") + each["text"])):
            cves[name].append(each["id"])
    names = sorted(cves)
    chosen = [names[int(at * len(names) / 40)] for at in range(40)]
    yield "Django: CVEs", [(f"What was {name} about?", cves[name], False) for name in chosen]
    text = (pages / "ref/settings.html").read_text(encoding="utf-8")
    settings, own = [], of_page(passages, "ref/settings.html")
    asks = "What does the setting {} do?", "What is the default of {}?", "When should I change {}?"
    for name in list(dict.fromkeys(re.findall(r'std[:-]setting-([A-Z0-9_]+)"', text)))[:180]:
        if found := ids(p for p in own if f"> {name} " in p.get("section", "") + " "):
            settings.append((asks[len(settings) % 3].format(name), found, False))
    yield "Django: settings", settings
    own, checks = of_page(passages, "ref/checks.html"), []
    for name in re.findall(r"\b[a-z_]+\.[EW]\d{3}\b", " ".join(each["text"] for each in own))[::6]:
        checks.append((f"What does {name} mean?", ids(p for p in own if name in p["text"]), False))
    yield "Django: checks", checks
    lines = (SETS / "django.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split("|") for line in lines]
    ordinary = [(q, ids(of_page(passages, *ends.split())), False) for q, ends in rows]
    yield "Django: ordinary, dev", ordinary[::2]
    yield "Django: ordinary", ordinary[1::2]


def python(pages: Path, passages: list[Passage]) -> Iterator[tuple[str, list[Asked]]]:
    names: list[Asked] = []
    asks = "What does {} do?", "How do I use {}?", "Which arguments does {} take?"
    for module in sorted(LIBRARY):
        own = of_page(passages, f"library/{module}.html")
        text = (pages / f"library/{module}.html").read_text(encoding="utf-8")
        found = re.findall(r'<dt class="sig sig-object py" id="([\w.]+)"', text)
        for name in list(dict.fromkeys(n for n in found if n.startswith(f"{module}.")))[::3][:8]:
            if hits := ids(p for p in own if f"{name}(" in p["text"].replace(" ", "")):
                names.append((asks[len(names) % 3].format(name), hits, False))
    yield "Python: names, dev", names
    asked: list[Asked] = []
    for page in sorted((pages / "faq").glob("*.html")):
        own = of_page(passages, f"faq/{page.name}")
        for heading in re.findall(r"<h[23]>(.*?)</h[23]>", page.read_text(encoding="utf-8"), re.S):
            bare = html.unescape(re.sub("<[^>]+>", "", heading)).replace("\N{PILCROW SIGN}", "")
            if (question := bare.strip()).endswith("?"):
                hits = ids(p for p in own if question[:40] in p.get("section", ""))
                asked += [(question, hits, False)] if hits else []
    yield "Python: FAQ, dev", asked


def django_pages(pages: Path) -> Iterator[Path]:
    """The pages that the questions need, and those about CVEs."""
    lines = (SETS / "django.txt").read_text(encoding="utf-8").splitlines()
    yield from (pages / end for line in lines for end in line.split("|")[1].split())
    yield pages / "ref/settings.html"
    yield pages / "ref/checks.html"
    for folder in ("faq", "intro", "howto"):
        yield from (pages / folder).glob("*.html")
    for page in (pages / "releases").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        short = len(re.sub("<[^>]*>", "", text)) <= 20_000 or page.name == "security.html"
        if "CVE-" in text and short:
            yield page


def opened(folder: Path, build: Callable[[Path], Any]) -> Index:
    if not folder.exists():
        build(folder)
    return load_index(folder)


def of_pages(pages: Path, chosen: Iterable[Path], out: Path) -> None:
    with tempfile.TemporaryDirectory() as copied:
        for page in {each for each in chosen if each.exists()}:
            target = Path(copied, page.relative_to(pages))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(page.read_bytes())
        build_index([copied], out, language="en")


def sets(given: argparse.Namespace, keep: Path) -> Iterator[tuple[str, Index, list[Asked]]]:
    """Yield each set's name, which ends in `dev` if it is for choosing, its index and questions."""
    for half in lookalikes.HALVES:
        texts, pairs = lookalikes.collection(half)
        made = {ident: make_passage("", text, ident) for ident, text in texts.items()}
        index = opened(keep / half, lambda out, m=made: build_from_passages([*m.values()], out))
        asked = [(question, [made[ident]["id"]], False) for question, ident in pairs]
        yield "look-alikes, dev" if half == "dev" else "look-alikes", index, asked
    passages, questions = quality.collect(given.data, 1.0)
    index = opened(keep / "quality", lambda out: build_from_passages(passages, out))
    for name in quality.DATASETS:
        yield name, index, [(q.text, q.wanted, q.every) for q in questions if q.dataset == name]
    for language in languages.LANGUAGES.split(","):
        paragraphs, rows = languages.read(given.data / f"xquad/{language}.dev.jsonl")
        for cut in (False, True):
            name = f"xquad-{language}{' cut' if cut else ''}"
            folder = keep / name
            folder.mkdir(exist_ok=True)
            index = opened(
                folder / "index",
                lambda _, p=paragraphs, f=folder, c=cut: languages.build(p, f, None, c),
            )
            by = defaultdict(list)
            for each in passages_of(index):
                by[Path(each["source"]).name].append(each["id"])
            asked = [(each.text, by[each.source], False) for each in rows]
            half = len(asked) // 2 if language in ("en", "de", "es") and not cut else 0
            if half:
                yield f"{name}, dev", index, asked[:half]
            yield name, index, asked[half:]
    for pages, reader in ((given.python, python), (given.django, django)):
        if pages:
            chosen = (
                django_pages(pages)
                if reader is django
                else [*(pages / f"library/{m}.html" for m in LIBRARY), *pages.glob("faq/*.html")]
            )
            index = opened(
                keep / reader.__name__, lambda out, p=pages, c=chosen: of_pages(p, c, out)
            )
            for name, asked in reader(pages, passages_of(index)):
                yield name, index, asked


def ranked(index: Index, asked: list[Asked]) -> list[Row]:
    texts = [text for text, _, _ in asked]
    both = zip(index._dense(texts, CANDIDATES, ()), index._bm25(texts, CANDIDATES, ()), strict=True)
    rows = []
    for (text, wanted, every), (dense, bm25) in zip(asked, both, strict=True):
        frequency = index._words._searcher.doc_freq
        counts = {each: frequency("words", each) for each in index._words._words_of(text)}
        named = [[(f"{key:016x}", score) for key, score in each] for each in (dense, bm25)]
        rows.append(Row(frozenset(wanted), every, *named, counts))
    return rows


def reciprocal(row: Row) -> list[str]:
    """Cormack, Clarke and Büttcher 2009."""
    scores: dict[str, float] = defaultdict(float)
    for ranking in (row.dense, row.bm25):
        for rank, (key, _) in zip(count(1), ranking):
            scores[key] += 1 / (60 + rank)
    return sorted(scores, key=lambda key: -scores[key])


def convex(weight: Callable[[Row], float], from_zero: bool = False) -> Callable[[Row], list[str]]:
    """Bruch, Gai and Ingber 2023, with a weight of the vectors that depends on the query."""

    def order(row: Row) -> list[str]:
        dense = [*row.dense[: CANDIDATES - 1], ("", 0.0)] if from_zero else row.dense
        found = fuse(dense, row.bm25, weight(row), 2 * CANDIDATES)
        return [key for key, _ in found if key]

    return order


def stands_out(row: Row) -> float:
    """The share of the best score by words that the third best has."""
    return row.bm25[min(2, len(row.bm25) - 1)][1] / row.bm25[0][1] if row.bm25 else 1.0


WAYS: dict[str, Callable[[Row], list[str]]] = {
    "dense": lambda row: [key for key, _ in row.dense],
    "bm25": lambda row: [key for key, _ in row.bm25],
    "reciprocal ranks": reciprocal,
    **{f"convex {w}": convex(lambda _, w=w: w) for w in (0.3, 0.4, 0.5, 0.6)},
    "convex 0.5, cosine from 0": convex(lambda _: 0.5, from_zero=True),
    "convex 0.6 × 3rd/1st by words": convex(lambda row: 0.6 * stands_out(row)),
    **{
        f"convex 0.6, rare (≤ {n}) 0.3": convex(lambda row, n=n: 0.3 if row.rare(n) else 0.6)
        for n in (1, 5, 20)
    },
    "chosen": convex(lambda row: dense_weight(row.counts, lambda word, _: row.counts[word])),
}
CHOSEN = "chosen"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--django", type=Path)
    parser.add_argument("--python", type=Path)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keep = given.keep or Path(folder)
        keep.mkdir(exist_ok=True)
        found = {name: ranked(index, asked) for name, index, asked in sets(given, keep)}
    result = {
        (name, way): np.array([quality.scores(f(r)[:20], r.wanted, r.every) for r in rows])
        for name, rows in found.items()
        for way, f in WAYS.items()
    }
    for title, dev in (("For choosing", True), ("For reporting", False)):
        names = [name for name in found if name.endswith("dev") == dev]
        print(f"\n**{title}**\n\n| way | {' | '.join(n.removesuffix(', dev') for n in names)} |")
        print("| --- |" + " --- |" * len(names))
        for way in WAYS:
            means = [result[name, way].mean(axis=0) for name in names]
            print(f"| {way} | {' | '.join(f'{m[0]:.3f} / {m[1]:.3f}' for m in means)} |")
    print("\n**Hybrid minus another, recall@5 and MRR@20**\n")
    print("| set | questions | reciprocal ranks | BM25 |\n| --- | --- | --- | --- |")
    for name in (each for each in found if not each.endswith("dev")):
        cells = [
            ", ".join(
                difference(result[name, CHOSEN][:, at] - result[name, o][:, at]) for at in (1, 3)
            )
            for o in ("reciprocal ranks", "bm25")
        ]
        print(f"| {name} | {len(found[name])} | {' | '.join(cells)} |")


def difference(each: Any) -> str:
    random = np.random.default_rng(0)
    means = each[random.integers(len(each), size=(quality.RESAMPLES, len(each)))].mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return f"{each.mean():+.3f} ({low:+.3f} to {high:+.3f})"


if __name__ == "__main__":
    main()
