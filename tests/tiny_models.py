"""Tiny models with random weights, which tests make and save."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopgate.classifiers.checkpoint import HEAD, Checkpoint
from hopgate.retrievers.encoders import resolve_encoder

if TYPE_CHECKING:
    from hopgate.classifiers.networks import T5Network

WORDS = ["[PAD]", "[UNK]", "who", "wrote", "it", "when", "was", "built", "the", "mother", "of"]


def save_cross_encoder(folder: Path, labels: int = 1, seed: int = 3) -> Path:
    """Save a BERT of two layers that scores pairs."""
    from transformers import BertForSequenceClassification

    settings = {"num_labels": labels, "initializer_range": 1.0}
    return _save(BertForSequenceClassification, folder, seed, **settings)


def save_contriever(folder: Path, seed: int = 3) -> Path:
    """Save a BERT of two layers, laid out as Contriever is on the hub."""
    from transformers import BertModel

    return _save(partial(BertModel, add_pooling_layer=False), folder, seed)


def _save(kind: Callable[..., Any], folder: Path, seed: int, **settings: Any) -> Path:
    import torch
    from transformers import AutoTokenizer, BertConfig

    tokenizer = AutoTokenizer.from_pretrained(resolve_encoder("minilm").folder)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    torch.manual_seed(seed)
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes | settings)
    kind(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_graph(folder: Path) -> None:
    """Export the model of a folder to `onnx/model.onnx`, as hubs have them."""
    import torch
    from transformers import AutoModel

    class TokenVectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(
                folder, add_pooling_layer=False, attn_implementation="eager"
            )

        def forward(self, ids: Any, mask: Any, kinds: Any) -> Any:
            found = self.model(input_ids=ids, attention_mask=mask, token_type_ids=kinds)
            return found.last_hidden_state

    given = torch.ones(3, 7, dtype=torch.int64)
    sizes = {0: torch.export.Dim("texts", max=4096), 1: torch.export.Dim("tokens", max=64)}
    program = torch.onnx.export(
        TokenVectors().eval(),
        (given * 3, given, given * 0),  # one tensor twice would be taken for one input
        dynamo=True,
        dynamic_shapes=(sizes, sizes, sizes),
        input_names=["input_ids", "attention_mask", "token_type_ids"],
        output_names=["last_hidden_state"],
        verbose=False,
    )
    assert program
    (folder / "onnx").mkdir()
    program.save(str(folder / "onnx/model.onnx"), external_data=False)


def save_t5(folder: Path, texts: Iterable[str]) -> Path:
    """Save a T5 of one layer with a tokenizer that knows the words of some texts."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    words = sorted({word for text in texts for word in text.split()} - {*"abc"})
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *"abc", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = dict(vocab_size=len(vocabulary), d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    config = T5Config(**sizes, decoder_start_token_id=0, dropout_rate=0.0)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def small_t5(seed: int = 0, **settings: Any) -> T5Network:
    """Return a T5 of two layers with a label head; an export takes 5 s for each layer."""
    import torch
    from transformers import T5Config

    from hopgate.classifiers.networks import T5Network

    torch.manual_seed(seed)
    sizes = dict(vocab_size=60, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=4)
    config = T5Config(**sizes | settings, decoder_start_token_id=0)
    network = T5Network(config).eval()
    for parameter in network.parameters():
        parameter.data.normal_(std=0.3)
    return network


def small_router(cost: T5Network, reliability: T5Network, *, one_body: bool) -> Checkpoint:
    """Return a router for the LLM `tiny`, whose weights differ everywhere or in the heads alone."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from hopgate.classifiers.training.bases import state_of

    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    states = {"cost-tiny": state_of(cost), "reliability": state_of(reliability)}
    shared = {
        name: values
        for name, values in states["cost-tiny"].items()
        if one_body and not name.startswith(HEAD)
    }
    own = {
        part: {name: values for name, values in state.items() if name not in shared}
        for part, state in states.items()
    }
    config = cost.t5.config.to_diff_dict()
    return Checkpoint("t5", config, tokenizer, {"shared": shared, **own})
