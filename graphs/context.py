"""What a person can turn per request: one validated dataclass, shown in Studio."""

from datetime import date
from typing import Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

SAMPLE = "sample"
BUILTIN = "builtin"


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Context:
    """Settings of one request. Every field has a default and a range.

    Raises:
        pydantic.ValidationError: A ValueError that names the field, the value and what
            is allowed.
    """

    alpha: float = Field(
        default=0.4,
        ge=0,
        le=1,
        description="The dial: 0 cheapest, 1 most reliable (always retrieves).",
    )
    gate: Literal["auto", "ta-are", "vanilla", "confidence", "always", "never", "off"] = Field(
        default="auto",
        description="How to decide whether to retrieve at all. auto: what the model can do; "
        "ta-are, vanilla, confidence: ask the model; always, never: fixed; "
        "off: the router alone decides.",
    )
    gate_threshold: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="confidence gate: least probability of Yes that means retrieval. "
        "Empty: the model's shipped threshold.",
    )
    gate_invalid: Literal["retrieve", "direct"] = Field(
        default="retrieve",
        description="What a gate reply that is neither Yes nor No means.",
    )
    strategy: Literal["auto", "none", "single", "multi"] = Field(
        default="auto",
        description="auto: gate and router decide. Otherwise this path is forced.",
    )
    model: str = Field(
        default="auto",
        min_length=1,
        max_length=200,
        description="openai:NAME, local:smollm2, or auto: the first that is configured.",
    )
    layout: Literal["auto", "inline", "turns"] = Field(
        default="auto",
        description="Prompt layout: one message, or demonstrations as chat turns. "
        "auto: what suits the model.",
    )
    index: str = Field(
        default=SAMPLE,
        min_length=1,
        max_length=1000,
        description="Folder of the index to search, or sample: the collection that ships.",
    )
    router: str = Field(
        default=BUILTIN,
        min_length=1,
        max_length=1000,
        description="Folder of the router's weights, or builtin: the one that ships.",
    )
    profile: str = Field(
        default="auto",
        min_length=1,
        max_length=64,
        description="Which LLM's outcomes the router follows, by name. "
        "auto: the one most like the model.",
    )
    top_k: int = Field(
        default=5, ge=1, le=50, description="Passages of a single retrieval (RetrievalQA: 5)."
    )
    hop_k: int = Field(
        default=3, ge=1, le=50, description="Passages of each hop (IRCoT with GPT models: 3)."
    )
    max_hops: int = Field(
        default=4, ge=1, le=10, description="Most hops of the multi-step loop (IRCoT: 10)."
    )
    max_passages: int = Field(
        default=15, ge=1, le=50, description="Evidence budget of the loop (IRCoT: 15)."
    )
    today: date | None = Field(
        default=None,
        description="The date that the gate is told, YYYY-MM-DD. Empty: the system's date.",
    )


def explain(error: ValidationError) -> str:
    """Put what is wrong with a context into one line."""
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'context'} is {each['input']!r}: {each['msg']}"
        for each in error.errors(include_url=False)
    )
