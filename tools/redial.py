"""Recompute a trained router's dials, and the summaries of its training questions.

    python tools/redial.py classifiers/weights QUESTIONS.jsonl … [--profile NAME …]
    python tools/redial.py classifiers/weights LABELS.jsonl --profile NAME --alpha

`--alpha` only computes the profile's default α, from the labels that it was trained on.

Nothing is trained: only manifest.json changes. The questions are the ones that the profile was
trained on, never those that its figures are measured on; they determine the steps, and `hopgate
doctor --questions` compares other questions with them. Saved α settings must be calibrated again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from hopgate.classifiers.checkpoint import MANIFEST, read, router_folder
from hopgate.classifiers.drift import summarise
from hopgate.classifiers.networks import all_features, network_from
from hopgate.classifiers.router import Router
from hopgate.classifiers.training.data import read_cost
from hopgate.classifiers.training.dials import cheapest_alpha, dials_of
from hopgate.common.files import json_bytes, read_json, write_atomic


def main() -> None:
    """Write the manifest with the new dials and summaries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("router", type=Path)
    parser.add_argument("questions", type=Path, nargs="+")
    parser.add_argument("--profile", action="append", help="default: all")
    parser.add_argument("--alpha", action="store_true", help="make the profile's default α")
    options = parser.parse_args()
    checkpoint = read(options.router)
    manifest = read_json(router_folder(options.router) / MANIFEST, "manifest")
    if options.alpha:
        (profile,) = options.profile
        alpha = cheapest_alpha(Router(checkpoint, profile), read_cost(profile, options.questions))
        manifest["alphas"] = manifest.get("alphas", {}) | {profile: alpha}
        write_atomic(router_folder(options.router) / MANIFEST, json_bytes(manifest))
        return
    profiles = options.profile or checkpoint.profiles
    parts = {part for profile in profiles for part in checkpoint.blended_parts(profile)}
    if manifest["training"]["objective"] != "utility" or parts - checkpoint.parts.keys():
        parser.error(f"{options.router} has no such profile of the utility objective")
    lines = [line for path in options.questions for line in path.read_text("utf-8").splitlines()]
    questions = list(dict.fromkeys(json.loads(line)["question"] for line in lines))
    state = checkpoint.state(sorted(parts)[0])
    network = network_from(checkpoint.architecture, checkpoint.config, state)
    encoded = sorted((each.ids for each in checkpoint.tokenizer.encode_batch(questions)), key=len)
    features = all_features(network, encoded)
    dials = dials_of(features, {part: checkpoint.parts[part] for part in sorted(parts)})
    checkpoint.dials |= dials
    for profile, dial in dials.items():
        known = summarise(Router(checkpoint, profile), questions)
        for name, made in (("dials", dial.weights.tolist()), ("known", asdict(known))):
            manifest[name] = manifest.get(name, {}) | {profile: made}
    write_atomic(router_folder(options.router) / MANIFEST, json_bytes(manifest))


if __name__ == "__main__":
    main()
