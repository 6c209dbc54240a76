"""Every prompt that hopgate sends, in the two layouts that models need.

`inline` is one user message, as the papers print it. `turns` gives the instruction
as the system message and each demonstration as a turn of its own, which is the only
form that very small models follow.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hopgate.models.chat import Layout
from hopgate.retrievers.base import Hit

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage


MAX_TITLE_CHARS = 200

_CITATION = re.compile(r"\[(\s*\d+(?:\s*,\s*\d+)*\s*)\]")
_INVISIBLE = ("Cc", "Cf", "Cs")  # control, format (zero-width, bidirectional, tags), surrogates
_JOINERS = "\u200c\u200d"
# ChatML, Llama, Mistral, Gemma, DeepSeek and the sentence marks of SentencePiece.
_MARKER = re.compile(
    r"<(?=[|｜]|/?s>|<?/?SYS>|(?:start|end)_of_turn>|(?:bos|eos|pad|unk)>)|\[(?=/?INST\])",
    re.IGNORECASE,
)
_MARKER_END = re.compile(r"([|｜])>")


class Demo(NamedTuple):
    """A demonstration: what the user asks and what the model should say."""

    asked: str
    said: str


# RetrievalQA, figures 5 and 6.
VANILLA = (
    "Given a question, determine whether you need to retrieve external resources, such as "
    "real-time search engines, Wikipedia, or databases, to answer the question correctly. "
    'Only answer "[Yes]" or "[No]".'
)
TA_ARE = "Today is {today}. " + VANILLA

# The four fixed demonstrations of RetrievalQA's authors, in their order.
GATE_DEMOS = (
    Demo("What is the boiling point of water?", "[No]"),
    Demo("Which five NFL teams have never played in a Super Bowl, as of today?", "[Yes]"),
    Demo("What is the capital of France?", "[No]"),
    Demo("What was the occupation of Walter de la Pole?", "[Yes]"),
)

# The confidence gate's, in the turns layout: eight more separate the embedded model's
# probabilities of Yes far better than the authors' four alone (figures in docs/results/gate.md).
CONFIDENCE_DEMOS = (
    *GATE_DEMOS[:2],
    Demo("How many days are in a week?", "[No]"),
    Demo("How long is the Kylling railway bridge?", "[Yes]"),
    *GATE_DEMOS[2:],
    Demo("What do cows eat?", "[No]"),
    Demo("In what year was the town of Ystad founded?", "[Yes]"),
    Demo("Who painted the Mona Lisa?", "[No]"),
    Demo("Where was the sculptor of the Belvoir fountain born?", "[Yes]"),
    Demo("What color is grass?", "[No]"),
    Demo("How many people live in the town of Otley?", "[Yes]"),
)

# RetrievalQA, figures 7 and 8.
DIRECT = (
    "Please use your own knowledge to answer the questions. Only include the answer in your "
    'response and try to be concise. If you do not know the answer, just say "I don\'t know".'
)
GROUNDED = (
    "Please answer the question based on the provided context. Only include the answer in your "
    'response and try to be concise. If you do not know the answer, just say "I don\'t know".'
)
CITE = " After the answer, cite the paragraphs that it comes from by their numbers, like [2]."

# Turns layout only: a model of 135M parameters copies the form, not the instruction.
# Measured on the sample questions: an "I don't know" that comes first makes it neither
# shy nor bold, and whole sentences keep it closer to the paragraphs than bare answers.
DIRECT_DEMOS: tuple[Demo, ...] = (
    Demo("What did Walter de la Pole eat on his tenth birthday?", "I don't know"),
    Demo("What is the capital of France?", "Paris"),
    Demo("Who wrote Pride and Prejudice?", "Jane Austen"),
    Demo("How many legs does a dog have?", "4"),
)

_ADA = (
    "Ada Lovelace\nAda Lovelace was an English mathematician, born in London in 1815. She wrote "
    "about Charles Babbage's Analytical Engine."
)
_BABBAGE = (
    "Charles Babbage\nCharles Babbage was an English inventor who designed the Analytical Engine, "
    "a mechanical computer of brass and iron."
)
_ENGINE = (
    "Analytical Engine\nThe Analytical Engine was a mechanical computer of brass and iron, "
    "designed by Charles Babbage in 1837."
)
GROUNDED_DEMOS: tuple[Demo, ...] = (
    Demo(
        f"Paragraph:\n[2] {_ADA}\n\n[1] {_BABBAGE}\n\n"
        "Question: Who designed the Analytical Engine?",
        "Charles Babbage designed the Analytical Engine.",
    ),
    Demo(
        f"Paragraph:\n[2] {_ENGINE}\n\n"
        "[1] Charles Babbage\nCharles Babbage was an English inventor, born in London in 1791.\n\n"
        "Question: In what city was the designer of the Analytical Engine born?",
        "Charles Babbage, the designer of the Analytical Engine, was born in London.",
    ),
    Demo(
        f"Paragraph:\n[2] {_BABBAGE}\n\n[1] {_ADA}\n\n"
        "Question: In what city was Ada Lovelace born?",
        "Ada Lovelace was born in London.",
    ),
)

# IRCoT's step: one more sentence of reasoning over what has been found so far.
REASON = (
    "Read the paragraphs and go on with the reasoning that leads to the answer of the question. "
    "Write exactly one sentence that states one fact from the paragraphs. When the paragraphs "
    'and the reasoning so far give the answer, write "So the answer is: " and the answer instead.'
)
# Facts only: shown a conclusion, the embedded model concludes at once, and wrongly. Its
# loop ends when a query repeats, and the reader call answers.
REASON_DEMOS: tuple[Demo, ...] = (
    Demo(
        "Paragraph:\n[2] Ada Lovelace\nAda Lovelace was an English mathematician. She wrote about "
        "engines and music.\n\n"
        f"[1] {_ENGINE}\n\n"
        "Question: In what city was the designer of the Analytical Engine born?",
        "The designer of the Analytical Engine was Charles Babbage.",
    ),
    Demo(
        "Paragraph:\n[2] Ada Lovelace\nAda Lovelace was an English mathematician. She wrote about "
        "engines and music.\n\n"
        "[1] Hamlet\nHamlet is a tragedy written by William Shakespeare around 1600. It is set in "
        "Denmark.\n\n"
        "Question: When did the writer of Hamlet die?",
        "The writer of Hamlet was William Shakespeare.",
    ),
)

DECOMPOSE = (
    "Split the question into at most {limit} simpler questions that one search each can answer, "
    "in the order in which they have to be asked. Where a question needs the answer of an earlier "
    "one, write {{1}} in its place for the answer of the first, {{2}} for that of the second, and "
    "so on. Write one numbered question a line and nothing else. Write a question that needs no "
    "splitting as it is."
)
DECOMPOSE_DEMOS: tuple[Demo, ...] = (
    Demo(
        "In what city was the designer of the Analytical Engine born?",
        "1. Who designed the Analytical Engine?\n2. In what city was {1} born?",
    ),
    Demo("How tall is Mont Blanc?", "1. How tall is Mont Blanc?"),
    Demo(
        "Which river is longer, the Danube or the Elbe?",
        "1. How long is the Danube?\n2. How long is the Elbe?",
    ),
    Demo(
        "When did the wife of the writer of Hamlet die?",
        "1. Who wrote Hamlet?\n2. Who was the wife of {1}?\n3. When did {2} die?",
    ),
)

SUB_ANSWER = (
    "Answer the question from the paragraphs with a name, a place, a date, a number or a few "
    'words, not with a sentence. If the paragraphs do not say it, write "I don\'t know".'
)
SUB_ANSWER_DEMOS: tuple[Demo, ...] = (
    Demo(
        f"Paragraph:\n[2] {_ADA}\n\n[1] {_BABBAGE}\n\n"
        "Question: Who designed the Analytical Engine?",
        "Charles Babbage",
    ),
    Demo(
        f"Paragraph:\n[2] {_BABBAGE}\n\n[1] {_ADA}\n\n"
        "Question: In what city was Ada Lovelace born?",
        "London",
    ),
)

CONDENSE = (
    "Given a conversation and a follow-up question, rewrite the follow-up as one question that "
    "can be understood without the conversation. Put names in the place of words such as it, he, "
    "she or there. Only write the question."
)


def conversation(turns: str, follow_up: str) -> str:
    """Lay out what `CONDENSE` is asked about."""
    return f"{turns}\n\nFollow-up question: {follow_up}\nWrite the question with names."


CONDENSE_DEMOS: tuple[Demo, ...] = (
    Demo(
        conversation(
            "Question: Who designed the Eiffel Tower?\n"
            "Answer: Gustave Eiffel designed the Eiffel Tower.",
            "And when was it opened?",
        ),
        "When was the Eiffel Tower opened?",
    ),
    Demo(
        conversation(
            "Question: Who wrote Pride and Prejudice?\nAnswer: Jane Austen", "Where was she born?"
        ),
        "Where was Jane Austen born?",
    ),
    Demo(
        conversation(
            "Question: Who wrote the novel Moby-Dick?\nAnswer: Herman Melville",
            "In what year did it appear?",
        ),
        "In what year did the novel Moby-Dick appear?",
    ),
    Demo(
        conversation(
            "Question: Who was the first person to climb Mont Blanc?\nAnswer: Jacques Balmat",
            "And how far is it from Geneva?",
        ),
        "How far is Mont Blanc from Geneva?",
    ),
)


def render(
    layout: Layout,
    instruction: str,
    asked: str,
    demos: Sequence[Demo] = (),
    *,
    examples_in_inline: bool = False,
) -> list["BaseMessage"]:
    """Lay out one prompt.

    Args:
        layout: `inline` or `turns`.
        instruction: What the model is to do.
        asked: The question with whatever belongs to it.
        demos: Demonstrations, oldest first.
        examples_in_inline: Whether `inline` shows the demonstrations too (TA-ARE's
            figure 6 does; elsewhere they only serve small models).
    """
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

    if layout == "turns":
        messages: list[BaseMessage] = [SystemMessage(instruction)]
        for demo in demos:
            messages += [HumanMessage(demo.asked), AIMessage(demo.said)]
        return [*messages, HumanMessage(asked)]
    parts = [instruction]
    if demos and examples_in_inline:
        shown = "\n\n".join(f"Question: {demo.asked}\nAnswer: {demo.said}" for demo in demos)
        parts.append(f"Here are some examples:\n{shown}")
    return [HumanMessage("\n\n".join([*parts, asked]))]


def fit(evidence: Sequence[Hit], budget: int) -> list[Hit]:
    """Return the first passages whose texts fit into `budget` characters.

    The first is always among them, cut to the budget.
    """
    fitting: list[Hit] = []
    for hit in evidence:
        if fitting and len(hit["text"]) > budget:
            break
        fitting.append(
            Hit(
                id=hit["id"],
                title=hit["title"][:MAX_TITLE_CHARS],
                text=hit["text"][:budget],
                score=hit["score"],
            )
        )
        budget -= len(hit["text"])
    return fitting


def grounded(layout: Layout, evidence: Sequence[Hit], question: str) -> str:
    """Lay out what is asked over passages: they, then the question on a line of its own."""
    return f"Paragraph:\n{paragraphs(layout, evidence)}\n\nQuestion: {as_data(question)}"


def paragraphs(layout: Layout, evidence: Sequence[Hit]) -> str:
    """Number the passages as `[i] title`, newline, text (RetrievalQA's form).

    In `turns` the best passage, number 1, comes last, next to the question: on the sample
    questions the embedded model reads it there and misses it elsewhere.
    """
    numbered = [
        f"[{number}] {_as_passage(hit['title'])}\n{_as_passage(hit['text'])}"
        for number, hit in enumerate(evidence, start=1)
    ]
    return "\n\n".join(numbered if layout == "inline" else reversed(numbered))


def _as_passage(text: str) -> str:
    """Keep a passage from citing: the only `[1]` in a prompt is the number that code gives."""
    return _CITATION.sub(r"(\1)", as_data(text))


def as_data(text: str) -> str:
    """Keep a text from looking like part of the prompt.

    On one line it cannot begin a numbered passage, a question or an answer of its own.
    """
    return " ".join(inert(text).split())


def _is_visible(character: str) -> bool:
    return (
        character.isspace()
        or character in _JOINERS
        or unicodedata.category(character) not in _INVISIBLE
    )


def inert(text: str) -> str:
    """Drop invisible characters and break chat-template markers, which open turns on some servers.

    The joiners that some scripts and emoji need stay.
    """
    visible = text if text.isprintable() else "".join(filter(_is_visible, text))
    return _MARKER_END.sub(r"\1 >", _MARKER.sub(r"\g<0> ", visible))
