"""The settings of a request: one validated model, shown in Studio."""

from datetime import date
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from hopgate.retrievers.base import SAMPLE
from hopgate.retrievers.filters import ENDS, FIELDS, Filter, Range, Where, parse_where

BUILTIN = "builtin"
FIXED = "fixed"

Gate = Literal[
    "auto", "ta-are", "vanilla", "confidence", "draft", "reply", "always", "never", "off"
]
LoopMode = Literal["ircot", "decompose"]


def _time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # unknown, malformed, or a folder
        raise ValueError("use an IANA time zone such as Europe/Berlin") from error
    return name


def _day(value: object) -> object:
    """Read a date as YYYY-MM-DD; an empty text means none."""
    try:
        return date.fromisoformat(value) if value and isinstance(value, str) else value or None
    except ValueError as error:
        raise ValueError("use a date such as 2024-02-01") from error


def _as_mapping(where: Filter) -> Any:
    """Return a filter as people write it; conditions on one field cannot be merged."""

    def plain(value: str | Range) -> Any:
        if isinstance(value, str):
            return value
        ends = zip(ENDS, value, strict=True)
        return {name: end for name, end in ends if end is not None}

    pairs = [(name, [plain(each) for each in values]) for name, values in where]
    found = dict(pairs)
    return found if len(found) == len(where) else [list(each) for each in pairs]


def _on_one_line(schema: dict[str, Any]) -> None:
    """Join the lines of the fields' descriptions, which are written below them."""
    for field in schema["properties"].values():
        field["description"] = " ".join(field["description"].split())


class Context(BaseModel):
    """Settings of one request. Every field has a default and a range.

    Raises:
        pydantic.ValidationError: A ValueError that names the field, the value and what
            is allowed.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        json_schema_extra=_on_one_line,
    )

    alpha: float | None = Field(default=None, ge=0, le=1)
    """The dial: 0 is cheapest, 1 most reliable by what the router has learnt. Default: the
    profile's own, the cheapest that was no worse than always searching once."""
    gate: Gate = "auto"
    """How to decide whether to retrieve at all. auto: what the collection covers, then what suits
    the model; ta-are, vanilla, confidence: ask the model; draft: answer directly and retrieve if
    the model is unsure of it; reply: in one call, the model replies or asks for a search; always,
    never: fixed; off: the router decides alone."""
    gate_threshold: float | None = Field(default=None, ge=0, le=1)
    """Retrieve if the value is at least this. confidence gate: the probability of Yes; draft gate:
    the uncertainty of the direct answer. Default: the model's."""
    gate_invalid: Literal["retrieve", "direct"] = "retrieve"
    """What to do if the gate's reply is neither Yes nor No."""
    demos: str = Field(default=FIXED, min_length=1, max_length=1000)
    """The gate's demonstrations. fixed: the built-in ones; else a JSONL file of questions, the
    nearest of which are shown (docs/gate.md)."""
    gate_demos: int | None = Field(default=None, ge=0, le=12, multiple_of=2)
    """Number of demonstrations for ta-are and confidence, half No and half Yes; 0: none. Default:
    4, or 12 for confidence in the turns layout."""
    gate_date: bool = True
    """Whether ta-are and confidence start with "Today is …"."""
    strategy: Literal["auto", "none", "single", "multi"] = "auto"
    """auto: gate and router decide; anything else forces that path."""
    escalate: int = Field(default=0, ge=0, le=20)
    """Go one strategy deeper if the answer is "I don't know" or its citations do not hold, until
    the turn has used this many retrievals. 0: never."""
    model: str = Field(default="auto", min_length=1, max_length=200)
    """openai:NAME (with OPENAI_API_KEY or OPENAI_BASE_URL), local:smollm2, auto (the first that is
    configured), or another of LangChain's providers, such as anthropic:NAME."""
    layout: Literal["auto", "inline", "turns"] = "auto"
    """Prompt layout: one message, or demonstrations as chat turns. auto: as suits the model."""
    answers: Literal["auto", "full", "short"] = "auto"
    """How to answer. full: as long as needed, with the conversation, and a mark after each
    statement that comes from a passage; short: as the papers do, the bare answer in at most 100
    tokens. auto: full, but short for questions to local:smollm2."""
    max_answer_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum tokens of the answer; a longer one is cut, and a warning says so. Default: the
    model's own limit."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature of the answer. Default: 0, or the model's own where it refuses that."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling of the answer. Default: the model's."""
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    """Seed of the answer's sampling, for models that take one."""
    reasoning_effort: str | None = Field(default=None, min_length=1, max_length=20)
    """How long a reasoning model thinks about the answer, such as low or high. Default: the
    model's."""
    stop: tuple[str, ...] = Field(default=(), max_length=16, json_schema_extra={"default": []})
    """Texts that end the answer."""
    index: str = Field(default=SAMPLE, min_length=1, max_length=1000)
    """Where to search: the folder of an index; sample: the built-in collection; web:wikipedia or
    web:serpapi: the web; milvus:NAME, qdrant:NAME or pgvector:NAME: an outside store
    (docs/retrieval.md)."""
    mode: Literal["auto", "dense", "bm25", "hybrid"] = "auto"
    """How to search an index. dense: by vectors; bm25: by words; hybrid: both, fused; auto: the
    mode that scored best in our measurements (hybrid)."""
    where: Annotated[
        Where | Filter,
        PlainValidator(lambda given: parse_where(given)),
        PlainSerializer(_as_mapping),
        WithJsonSchema({"type": "object", "properties": {name: {} for name in FIELDS}}),
    ] = Field(default=(), json_schema_extra={"default": {}})
    """Search only passages whose id, title, source, page and section, or fields of their metadata
    such as author or tags, have these values; of several values of a field, one must match. A
    source may be a pattern such as handbook/*.md; numbers and dates may be a range, {"from":
    "2024-01-01", "to": "2024-12-31"}. Default: all passages."""
    rerank: str = Field(default="", max_length=1000)
    """A cross-encoder (folder or hub name) that reranks the passages found. Default: none."""
    retriever_failure: Literal["answer", "error"] = "answer"
    """What to do if a search fails. answer: answer without it, with a warning; error: fail."""
    router: str = Field(default=BUILTIN, min_length=1, max_length=1000)
    """Folder of the router's weights, or builtin."""
    profile: str = Field(default="auto", min_length=1, max_length=64)
    """The LLM whose outcomes the router follows. auto: the one most like the model."""
    top_k: int = Field(default=5, ge=1, le=50)
    """Number of passages of a single retrieval (RetrievalQA: 5)."""
    hop_k: int = Field(default=3, ge=1, le=50)
    """Number of passages of each hop (IRCoT with GPT models: 3)."""
    max_hops: int = Field(default=4, ge=1, le=10)
    """Maximum number of hops in the loop (IRCoT: 10)."""
    max_passages: int = Field(default=15, ge=1, le=50)
    """Maximum number of passages the loop collects (IRCoT: 15)."""
    passage_chars: int = Field(default=2_000, ge=100, le=50_000)
    """Maximum characters of a passage in the loop; longer ones are cut."""
    max_evidence_tokens: int | None = Field(default=None, ge=200, le=1_000_000)
    """Evidence budget in tokens of four bytes, as English prose has (IRCoT: a prompt of 6,000).
    Default: as much as fits in one prompt of the model."""
    multihop: LoopMode = "ircot"
    """How the loop works. ircot: one sentence of reasoning per hop becomes the next query;
    decompose: one sub-question per hop."""
    max_sub_questions: int = Field(default=4, ge=1, le=10)
    """Maximum number of sub-questions for decompose."""
    max_seconds: float | None = Field(default=300, gt=0, le=86_400)
    """Deadline of the turn in seconds, without pauses. The loop ends after three quarters of it, so
    that there is time for the answer."""
    max_calls: int | None = Field(default=50, ge=1, le=10_000)
    """Maximum number of model calls of the turn; the loop leaves one for the answer."""
    max_retrievals: int | None = Field(default=50, ge=1, le=10_000)
    """Maximum number of searches of the turn."""
    max_total_tokens: int | None = Field(default=None, ge=1_000, le=100_000_000)
    """Maximum number of tokens that the turn's calls read and write together; the loop leaves a
    quarter for the answer. Default: no maximum."""
    today: Annotated[date | None, BeforeValidator(_day)] = None
    """The date in the gate's prompt, YYYY-MM-DD. Default: the clock's."""
    timezone: Annotated[str, AfterValidator(_time_zone)] | None = Field(
        default=None, max_length=100
    )
    """Time zone of the clock's date, such as Europe/Berlin. Default: the system's."""

    def over(self, defaults: "Context") -> "Context":
        """Return these settings, with those of `defaults` where none was given."""
        names = self.model_fields_set & Context.model_fields.keys()  # a subclass may have more
        return defaults.model_copy(update={name: getattr(self, name) for name in names})
