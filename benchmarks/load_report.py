"""Print the results of server_load.py as tables for docs/results/serving.md, and plot memory.

python benchmarks/load_report.py load.json [--plot memory.png]
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Found = dict[str, Any]
LATENCIES = ("p50_ms", "p95_ms", "p99_ms")
RATIOS = ("answers_per_s", "mean_ms", "p50_ms", "p95_ms", "cpu_ms")
COLOURS = {
    "memory-graph": "#1b6ca8",
    "memory-sqlite": "#c8553d",
    "memory-server": "#2f8f5b",
    "memory-server-plain": "#8a8a8a",
}
TITLES = {
    "memory-graph": "graph, no checkpoints",
    "memory-sqlite": "graph, checkpoints in SQLite",
    "memory-server": "langgraph dev",
    "memory-server-plain": "langgraph dev, plain graph",
}


def row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    names = list(head)
    yield row(*names)
    yield row(*["---"] * len(names))
    yield from (row(*each) for each in rows)
    yield ""


def parts(found: Found, kind: str) -> dict[str, Found]:
    """Return the parts of a kind by number of users."""
    named = {name.removeprefix(f"{kind}-"): part for name, part in found.items()}
    return {users: part for users, part in named.items() if users.isdigit()}


def per_s(side: Found) -> str:
    return f"{side['answers_per_s']:.1f}"


def load_rows(by_users: dict[str, Found]) -> Iterator[Iterable[object]]:
    for users, part in by_users.items():
        for name in ("bare plain", "plain", "bare hopgate", "hopgate"):
            if side := part.get(name):
                times = [f"{side[each]:,.0f}" for each in LATENCIES]
                share = f"{side['model_share']:.0%}"
                cpu = f"{side['cpu_ms']:.1f}"
                yield (users, name, per_s(side), *times, side["errors"], cpu, share)


def ratio_rows(by_users: dict[str, Found]) -> Iterator[Iterable[object]]:
    for users, part in by_users.items():
        yield (users, *(f"{part['hopgate / plain'][each]:.2f}" for each in RATIOS))


def own_rows(by_users: dict[str, Found]) -> Iterator[Iterable[object]]:
    """Yield the cost beyond the `bare` sides; latency for one user only, as more users queue."""
    for users, part in by_users.items():
        plain, hopgate = (part["beyond bare"][name] for name in ("plain", "hopgate"))
        latency = [f"{side['mean_ms']:.1f}" if users == "1" else "" for side in (plain, hopgate)]
        yield (users, *latency, *(f"{side['cpu_ms']:.1f}" for side in (plain, hopgate)))


def fault_rows(part: Found) -> Iterator[Iterable[object]]:
    for name, good in part["good"].items():
        bad = part.get("bad", {}).get(name, {})
        ratio = part.get("good / alone", {}).get(name, {})
        ratios = [f"{ratio[each]:.2f}" if ratio else "" for each in ("p50_ms", "p95_ms")]
        after = "–".join(f"{each:g}" for each in bad.get("failed_after_s", []))
        times = [f"{good[each]:,.0f}" for each in ("p50_ms", "p95_ms")]
        yield (name, *times, *ratios, good["errors"], bad.get("errors", ""), after)


def memory_rows(found: Found) -> Iterator[Iterable[object]]:
    for name, title in TITLES.items():
        if part := found.get(name):
            points = part["resident_mib"]
            sizes = [f"{points[at][1]:,.0f}" for at in (0, 1, len(points) // 2, -1)]
            yield (title, f"{points[-1][0]:,}", *sizes, part["mib_per_1000"])


def tables(found: Found) -> Iterator[str]:
    head = ["users", "flow", "answers/s", "p50 ms", "p95 ms", "p99 ms"]
    head += ["errors", "CPU ms", "model's share"]
    ratios = ["users", "answers/s", "mean", "p50", "p95", "CPU"]
    fault = ["other users", "p50 ms", "p95 ms", "p50 ratio", "p95 ratio", "errors"]
    fault += ["their errors", "after s"]
    memory = [
        "",
        "requests",
        "at first",
        "after a tenth",
        "after half",
        "after all",
        "MiB per 1,000",
    ]
    for kind in ("graph", "server"):
        yield from (f"## {kind}", "", *table(head, load_rows(parts(found, kind))))
        yield from table(ratios, ratio_rows(parts(found, kind)))
    if slots := found.get("slots"):
        yield from ("## slots", "", *table(head, load_rows({"8": slots})))
    yield from ("## own cost", "")
    own = ["users", "plain ms", "hopgate ms", "plain CPU ms", "hopgate CPU ms"]
    yield from table(own, own_rows(parts(found, "graph")))
    for name in ("faults-graph", "faults-server", "faults-slots"):
        if part := found.get(name):
            yield from (f"## {name}", "", *table(fault, fault_rows(part)))
    yield from ("## memory", "", *table(memory, memory_rows(found)))


def plot(found: Found, file: Path) -> None:
    """Draw resident memory over requests."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for name, title in TITLES.items():
        if part := found.get(name):
            requests, sizes = zip(*part["resident_mib"], strict=True)
            axes.plot(requests, sizes, marker="o", markersize=3, color=COLOURS[name], label=title)
    axes.set(xlabel="requests, 32 concurrent", ylabel="resident memory, MiB")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("found", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    found = json.loads(args.found.read_text())
    print("\n".join(tables(found)))
    if args.plot:
        plot(found, args.plot)


if __name__ == "__main__":
    main()
