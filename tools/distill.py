"""Build the small T5 base of the shipped router from all-MiniLM-L6-v2.

No pretrained T5 of that size exists with this vocabulary, so MiniLM's knowledge is moved into a T5
encoder in two steps. `transplant` copies MiniLM's matrices. BERT normalises after each sublayer
and has biases; T5 normalises before it and has none; so the inputs of each sublayer are fitted by
least squares. `heal` then trains the encoder, token by token, to reproduce MiniLM's last hidden
states.

    python tools/distill.py --text FILES... --out DIR
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

from hopgate.classifiers.checkpoint import MAX_TOKENS, Checkpoint
from hopgate.classifiers.networks import padded
from hopgate.classifiers.training.bases import from_pretrained, state_of
from hopgate.classifiers.training.fitting import Unfinished
from hopgate.classifiers.training.writing import check_free, split, write
from hopgate.common import minilm
from hopgate.common.files import read_jsonl

SENTENCE_TOKENS = 40
STEPS = 3000
ROUND = 250
"""Steps after which an unfinished distillation is saved."""
CLS, SEP, MASK, PAD = 101, 102, 103, 0
CONSTANT = 1.0
"""Component of the residual stream along the all-ones direction, in units of its deviation."""
FITTED_TOKENS = 5000
"""Number of tokens that the transplant is fitted on."""
CARD = """# T5 base

A T5 encoder distilled from all-MiniLM-L6-v2 (Apache-2.0), with an untrained one-layer decoder;
for `hopgate train-router --base`. manifest.json says under `training` how it was made.
"""


def read_sentences(paths: Iterable[Path]) -> list[str]:
    """Return all distinct sentences of at least four words in text, Markdown or JSONL files.

    Args:
        paths: Files, or folders that are searched for .txt, .md and .jsonl files.

    Raises:
        ValueError: A path does not exist, or the files contain no sentence.
    """
    if missing := [path for path in paths if not path.exists()]:
        raise ValueError(f"{missing[0]} does not exist; give text files or folders of them")
    files = [
        file
        for path in paths
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.suffix in {".txt", ".md", ".jsonl"}
    ]
    sentences: dict[str, None] = {}
    for file in files:
        for text in _texts(file):
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'(])|\n+", text):
                if len(sentence.split()) >= 4:
                    sentences[sentence.strip()] = None
    if not sentences:
        raise ValueError(f"no sentences in {', '.join(map(str, files)) or 'the given paths'}")
    return list(sentences)


def _texts(file: Path) -> list[str]:
    if file.suffix != ".jsonl":
        return [file.read_text(encoding="utf-8")]
    rows = read_jsonl(file, lambda fields, _: list(_strings(fields)), expected="JSON lines")
    return list(itertools.chain(*rows))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def new_t5(layers: int) -> T5ForConditionalGeneration:
    """Return a T5 with MiniLM's vocabulary and sizes, and one decoder layer."""
    settings: dict[str, Any] = dict(
        vocab_size=30522,
        d_model=384,
        d_kv=32,
        d_ff=1536,
        num_layers=layers,
        num_decoder_layers=1,
        num_heads=12,
        feed_forward_proj="gelu",
        dropout_rate=0.1,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=SEP,
        decoder_start_token_id=CLS,
    )
    return T5ForConditionalGeneration(T5Config(**settings))


def _batches(
    ids: Sequence[list[int]], size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield shuffled batches of similar length, endlessly: ids and mask, each [batch, tokens]."""
    while True:
        order = torch.randperm(len(ids), generator=generator).tolist()
        for start in range(0, len(order), size * 16):
            block = sorted(order[start : start + size * 16], key=lambda i: len(ids[i]))
            groups = [block[i : i + size] for i in range(0, len(block), size)]
            for at in torch.randperm(len(groups), generator=generator).tolist():
                yield padded([ids[i] for i in groups[at]])


def _corrupt(tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Mask a tenth of the words, and replace a tenth by other words of the batch."""
    words = tokens > MASK
    draw = torch.rand(tokens.shape, generator=generator)
    pool = tokens[words]
    swaps = pool[torch.randint(len(pool), tokens.shape, generator=generator)]
    tokens = torch.where(words & (draw < 0.1), torch.full_like(tokens, MASK), tokens)
    return torch.where(words & (draw > 0.9), swaps, tokens)


def _inputs_of(module: nn.Module, run: Any) -> Tensor:
    """Return the first argument of `module` during `run()`, which stops there."""
    seen: list[Tensor] = []

    def record(_: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])
        raise StopIteration

    hook = module.register_forward_pre_hook(record, with_kwargs=True)
    with contextlib.suppress(StopIteration):
        run()
    hook.remove()
    return seen[0]


def _fit_read(stream: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Fit the RMS-normalised stream [n, d] to `target` [n, d] and to the constant 1.

    Returns:
        The map [d, d] to the target, and the vector [d] that gives the constant.
    """
    x = (stream * torch.rsqrt(stream.pow(2).mean(-1, keepdim=True) + 1e-6)).double()
    y = torch.cat([target, torch.ones(len(target), 1)], dim=1).double()
    gram = x.T @ x + 1e-3 * len(x) * torch.eye(x.shape[1], dtype=torch.double)
    solved = torch.linalg.solve(gram, x.T @ y).float()
    return solved[:, :-1], solved[:, -1]


def _fit_write(stream: Tensor, target: Tensor) -> Tensor:
    """Return the map [d, d] from a BERT sublayer's output into the stream.

    It scales each coordinate from BERT's state to the stream, within bounds, since a coordinate
    that BERT hardly uses would dominate the rest. The mean over the coordinates is subtracted, so
    that the all-ones direction keeps its constant.
    """
    x, y = stream - stream.mean(0), target - target.mean(0)
    slope = (x * y).sum(0) / (y * y).sum(0)
    slope = slope.clamp(0, 1.5 * slope.median().item())
    size = len(slope)
    return (torch.eye(size) - torch.full((size, size), 1 / size)) @ torch.diag(slope)


def _copy_reads(
    ours: Sequence[nn.Linear], theirs: Sequence[nn.Linear], stream: Tensor, state: Tensor
) -> None:
    """Make `ours` compute from the stream what `theirs`, with biases, compute from BERT's state."""
    read, one = _fit_read(stream, state)
    for mine, its in zip(ours, theirs, strict=True):
        mine.weight.data = its.weight @ read.T + torch.outer(its.bias, one)


def transplant(
    teacher: BertModel, student: T5ForConditionalGeneration, copied: Sequence[int], tokens: Tensor
) -> nn.Linear:
    """Copy layers of `teacher` into the encoder of `student`, in place.

    Embedding rows become BERT's normalised sum of word, type and mean position. q, k, v and the
    first FFN matrix are composed with the least-squares map from the T5 stream to BERT's state,
    with their biases on the constant direction; o and the second FFN matrix are scaled into the
    stream.

    Args:
        teacher: all-MiniLM-L6-v2.
        student: A model from `new_t5(len(copied))`.
        copied: Layers of the teacher, ascending.
        tokens: Token ids [batch, tokens] to fit on.

    Returns:
        The linear map from the encoder's output to the teacher's last hidden state.
    """
    mask = (tokens != PAD).long()
    real = mask.bool()
    embeddings: Any = teacher.embeddings
    word = embeddings.word_embeddings.weight + embeddings.token_type_embeddings.weight[0]
    summed = word + embeddings.position_embeddings.weight[:32].mean(0)
    student.shared.weight.data = torch.layer_norm(summed, summed.shape[-1:]) + CONSTANT
    blocks: Any = student.encoder.block
    blocks[0].layer[0].SelfAttention.relative_attention_bias.weight.data.zero_()

    def run_teacher() -> Any:
        return teacher(input_ids=tokens, attention_mask=mask).last_hidden_state

    def run_student() -> Any:
        return student.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state

    def stream_and_state(ours: nn.Module, theirs: nn.Module) -> tuple[Tensor, Tensor]:
        return _inputs_of(ours, run_student)[real], _inputs_of(theirs, run_teacher)[real]

    layers: Any = teacher.encoder.layer
    for block, at in zip(blocks, copied, strict=True):
        bert = layers[at]
        attention, own = block.layer[0].SelfAttention, bert.attention.self
        stream, state = stream_and_state(block.layer[0], bert)
        theirs = (own.query, own.key, own.value)
        _copy_reads((attention.q, attention.k, attention.v), theirs, stream, state)
        attention.q.weight.data /= own.attention_head_size**0.5
        attention.o.weight.data = _fit_write(stream, state) @ bert.attention.output.dense.weight
        dense = block.layer[1].DenseReluDense
        stream, state = stream_and_state(block.layer[1], bert.intermediate)
        _copy_reads((dense.wi,), (bert.intermediate.dense,), stream, state)
        dense.wo.weight.data = _fit_write(stream, state) @ bert.output.dense.weight
    read, one = _fit_read(
        _inputs_of(student.encoder.final_layer_norm, run_student)[real], run_teacher()[real]
    )
    head = torch.nn.Linear(len(one), len(one), bias=False)
    head.weight.data = read.T.contiguous()
    return head


def heal(
    teacher: BertModel,
    encoder: nn.Module,
    head: nn.Linear,
    ids: Sequence[list[int]],
    unfinished: Unfinished,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> list[float]:
    """Train `encoder` and `head` to reproduce the teacher's last hidden state of each token.

    Args:
        teacher: The model to follow.
        encoder: The T5 encoder; its embeddings stay as they are.
        head: Linear map from the encoder's output to the teacher's.
        ids: Token ids of the sentences.
        unfinished: Where the state is saved every `ROUND` steps.
        steps: Optimiser steps.
        batch_size: Sentences in a batch.
        learning_rate: Peak of a linear schedule with 5% warm-up.
        seed: For the order and the corruption.

    Returns:
        For each step, the squared error relative to the teacher's squared norm.
    """
    encoder.embed_tokens.weight.requires_grad_(False)  # type: ignore[union-attr]
    modules = nn.ModuleList([encoder, head])
    weights = nn.ParameterList(p for p in modules.parameters() if p.requires_grad)
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, weight_decay=0.0)
    state: dict[str, Any] = {"weights": weights, "optimizer": optimizer}
    losses = unfinished.resume("distil", **state)
    done, warm = len(losses), max(1, steps // 20)
    encoder.eval()
    generator = torch.Generator().manual_seed(seed)
    stream = itertools.islice(_batches(ids, batch_size, generator), steps)
    for at, (clean, mask) in enumerate(
        track(stream, "distil", total=steps, console=Console(stderr=True))
    ):
        tokens = _corrupt(clean, generator)
        if at < done:
            continue  # a step of an earlier run; only its random numbers are drawn again
        rate = min((at + 1) / warm, (steps - at) / max(1, steps - warm))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * rate
        loss = _distance(teacher, encoder, head, tokens, mask)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % ROUND == 0:
            unfinished.save("distil", losses, **state)
    return losses


def _distance(
    teacher: BertModel, encoder: nn.Module, head: nn.Linear, tokens: Tensor, mask: Tensor
) -> Tensor:
    """Return the squared error over the batch's tokens, relative to the teacher's squared norm."""
    with torch.no_grad():
        target = teacher(input_ids=tokens, attention_mask=mask).last_hidden_state
    output = head(encoder(input_ids=tokens, attention_mask=mask).last_hidden_state)
    real = mask.bool()
    error: Tensor = (output - target)[real].pow(2).sum() / target[real].pow(2).sum()
    return error


def start_decoder(model: T5ForConditionalGeneration, head: nn.Linear) -> None:
    """Initialise the decoder, in place, so that it gives the mean of the teacher's states."""
    blocks: Any = model.decoder.block
    cross = blocks[0].layer[1].EncDecAttention
    cross.k.weight.data.zero_()
    cross.v.weight.data = head.weight.data / head.weight.data.std() / head.in_features**0.5
    cross.o.weight.data = torch.eye(head.in_features)


def distill(
    paths: Sequence[Path],
    out: Path,
    *,
    layers: Sequence[int] = (0, 1, 2, 3, 4, 5),
    steps: int = STEPS,
    batch_size: int = 32,
    learning_rate: float = 3e-4,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Build the base from MiniLM and the sentences in `paths`, and write its folder.

    A killed run resumes at the last saved step when it is started again with the same arguments.

    Args:
        paths: Text, Markdown or JSONL files, or folders of them.
        out: Folder to write.
        layers: MiniLM layers to copy, ascending.
        steps: Steps of token-by-token distillation.
        batch_size: Sentences in a batch.
        learning_rate: Peak of the schedule.
        seed: For everything random.
        overwrite: Replace an existing folder.

    Returns:
        Settings, number of sentences, and the relative squared error at the start and the end.

    Raises:
        ValueError: There is no text, or `out` exists.
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}; use a number of at least 1")
    check_free(out, overwrite)
    torch.manual_seed(seed)
    tokenizer = minilm.tokenizer()
    tokenizer.enable_truncation(SENTENCE_TOKENS)
    sentences = read_sentences(paths)
    ids = [encoding.ids for encoding in tokenizer.encode_batch(sentences)]
    teacher = BertModel(BertConfig.from_json_file(minilm.CONFIG), add_pooling_layer=False)
    weights = minilm.weights()
    teacher.load_state_dict({name: torch.from_numpy(each) for name, each in weights.items()})
    student = new_t5(len(layers))
    teacher.train(False)
    student.train(False)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head = transplant(teacher, student, layers, _sample(ids, generator))
    recipe = (sentences, layers, steps, batch_size, learning_rate, seed)
    unfinished = Unfinished(out, hashlib.sha256(repr(recipe).encode()).hexdigest())
    losses = heal(
        teacher,
        student.encoder,
        head,
        ids,
        unfinished,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
    )
    start_decoder(student, head)
    tokenizer.enable_truncation(MAX_TOKENS)
    figures = {
        "sentences": len(sentences),
        "kept_layers": list(layers),
        "steps": steps,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        "relative_error": {
            "first_step": round(losses[0], 4),
            "last_50_steps": round(sum(losses[-50:]) / len(losses[-50:]), 4),
        },
    }
    checkpoint = Checkpoint(
        architecture="t5",
        config=student.config.to_diff_dict(),
        tokenizer=tokenizer,
        parts=split({}, state_of(from_pretrained(student, tokenizer))),
        training=figures,
    )
    write(checkpoint, out, CARD, int8=True, overwrite=overwrite)
    unfinished.discard()
    return figures


def _sample(ids: Sequence[list[int]], generator: torch.Generator) -> Tensor:
    """Draw short sentences, about `FITTED_TOKENS` tokens in total, padded: [sentences, tokens]."""
    rows: list[list[int]] = []
    for at in torch.randperm(len(ids), generator=generator).tolist():
        if len(ids[at]) <= 26:
            rows.append(ids[at])
        if sum(map(len, rows)) >= FITTED_TOKENS:
            break
    return padded(rows)[0]


def main() -> None:
    """Run `distill` with the options of the command line; print its figures as JSON."""
    parser = argparse.ArgumentParser(description="Build the T5 base of the router that ships.")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files or folders")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overwrite", action="store_true")
    given = parser.parse_args()
    try:
        figures = distill(
            given.text, given.out, steps=given.steps, seed=given.seed, overwrite=given.overwrite
        )
    except ValueError as error:
        parser.error(str(error))
    except RuntimeError as error:
        sys.exit(f"distill: {error}")
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
