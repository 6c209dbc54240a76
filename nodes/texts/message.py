"""Decides by rules, without a call, whether a message may ask for facts or needs no search.

The rules aim to be certain, not complete: any other message counts as a question, and the gate
decides. They read English, and the commonest words of German, French, Spanish and Chinese.
"""

import re
import tomllib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hopgate.common.words import sentences, words
from hopgate.nodes.texts.support import content_words, terms
from hopgate.nodes.texts.text import first_line

Kind = Literal["question", "conversation", "small_talk", "task", "client_task"]

QUERY_CHARS = 1_000
"""Characters of a query; the encoders read no more."""
READ_CHARS = 300
"""Characters read at each end of a message, where people say what to do with the rest."""
PASTED_CHARS = 400
TRANSCRIPT_CHARS = 20_000
SMALL_TALK_WORDS = 12


class MessageDecision(TypedDict):
    """The kind of a message, and who decided it."""

    kind: Kind
    """question: perhaps facts, so gate and router decide. The others need no search. conversation:
    it is about earlier messages; small_talk: a greeting, thanks or an introduction; task: writing,
    code, or work on a text that the message brings; client_task: a chat client's own, such as a
    title."""
    source: Literal["rules", "model"]
    reason: str


_REASONS: dict[Kind, str] = {
    "question": "it may need facts",
    "conversation": "it is about the conversation",
    "small_talk": "it is a greeting, thanks or an introduction",
    "task": "it asks for writing, code, or work on a text of its own",
    "client_task": "it is a chat client's own task",
}


_VOCABULARY = tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text("utf-8"))
_WORDS = {name: frozenset(words.split()) for name, words in _VOCABULARY["words"].items()}


def _any(*names: str) -> str:
    """Return a pattern for any of the choices of the vocabulary's lists."""
    lists = [re.split(r";\s+", _VOCABULARY["choices"][name].strip()) for name in names]
    return re.sub(r"\{([a-z_]+)\}", lambda named: _any(named[1]), f"(?:{'|'.join(chain(*lists))})")


def _search(pattern: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | flags)


_POLITE = rf"^\W*(?:{_any('polite')}\b[\s,!.]*|[请請]\s*)*"
_DO = _any("do", "work")
_WORK = _search(rf"{_POLITE}{_any('work')}\b")
_CHANGE = _search(_POLITE + _DO)
_REPEAT = _search(_POLITE + r"(?:repeat|wiederhole?|répète|repite)\b")
_SAID = _search(_any("what_was_said"))
# "translate that to German", "make it shorter", "explain this again"
_AGAIN = _search(rf"{_DO}\s+(?:me\s+)?{_any('it')}(?=\s*(?:$|[.!?]|{_any('differently')}))")
_SHORT_CHANGE = _search(
    rf"^\W*(?:{_any('short_start')}\W+)*{_any('short_change')}"
    r"\W*(?:please|bitte|pls|merci|por favor)?\W*$"
)
_ABOUT_SAID = _search(_any("about_what_was_said"))
_INTRODUCTION = _search(
    rf"^\W*(?:(?:hi|hello|hey|hallo|bonjour|hola)\b\W*)?{_any('introduction')}"
    r"(?!.*(?:\?|\b(?:need|want|looking|how|can|can't|could|help|brauche|voudrais)\b))",
    re.DOTALL,
)
_FIRST_PERSON = _search(rf"\b{_any('first_person')}\b|我")
_MAKE = _search(
    rf"{_POLITE}{_any('make')}\b(?P<rest>.*)|^[请請]?[写寫编](?P<chinese>.*)", re.DOTALL
)
_PIECE = _search(rf"\b{_any('piece')}\b|诗|故事|笑话|函数|代码")
_OF_DOCUMENTS = _search(rf"\b{_any('of_documents')}\b")
_QUOTED = _search(r"[\"“”„«»‘`']\S.*\S[\"“”»’`']|:\s*\S", re.DOTALL)
_SUM = _search(
    r"^\W*(?:what(?:'s| is)|calculate|compute|how much is|was ist|combien font)?\s*"
    r"(?=[^a-z]*\d[^a-z]*[-+*/×÷^%][^a-z]*\d)[\d\s.,()+\-*/×÷^%=?]+$"
)
_TRANSCRIPT = _search(
    r"<(?:chat_history|conversation|messages|history|chat_context|transcript)>"
    r"|^[^\w\n]{0,9}(?:user|human)\W{0,3}:(?=.*^[^\w\n]{0,9}(?:assistant|ai|bot|model)\W{0,3}:)",
    re.DOTALL | re.MULTILINE,
)
_CLIENT_TASK = _search(
    rf"^\W*task\b|\b{_any('client_verb')}\b.{{0,120}}\b{_any('client_object')}\b", re.DOTALL
)


def classify(text: str, said: Sequence[tuple[str, str]], system: str = "") -> MessageDecision:
    """Classify a message by rules.

    Args:
        text: The message.
        said: The conversation before it: who said it (`human` or `ai`), and what.
        system: The conversation's system messages.
    """
    kind: Kind = "question"
    if _is_client_task(text, system):
        kind = "client_task"
    elif _is_small_talk(text):
        kind = "small_talk"
    elif said and _is_about(text, said):
        kind = "conversation"
    elif not text or _is_task(text):
        kind = "task"
    return MessageDecision(kind=kind, source="rules", reason=_REASONS[kind])


def kind_of(decision: object) -> Kind:
    """Return the kind of a turn's message; a question, if its decision does not say."""
    message = decision.get("message") if isinstance(decision, dict) else None
    return message["kind"] if message else "question"


def query(text: str, chars: int = QUERY_CHARS) -> str:
    """Return the query of a message: a short message itself, or a long one's question.

    Of a long message that is its questions, or its last line.

    Args:
        text: The message.
        chars: Maximum length.
    """
    if len(text) <= chars:
        return text
    ends = [text[:QUERY_CHARS], text[-QUERY_CHARS:]]
    asked = [each for end in ends for each in _sentences(end) if each.endswith(("?", "？", "؟"))]
    last = next((line for line in reversed(ends[1].splitlines()) if words(line)), ends[0])
    return (" ".join(dict.fromkeys(asked)) or last).strip()[-chars:].strip()


def _sentences(text: str) -> list[str]:
    return [each for line in text.splitlines() for each in sentences(line)]


def _is_client_task(text: str, system: str) -> bool:
    instruction = f"{system[:READ_CHARS]}\n{text[:READ_CHARS]}\n{text[-READ_CHARS:]}"
    carries = any(_TRANSCRIPT.search(each[:TRANSCRIPT_CHARS]) for each in (text, system))
    return carries and any(map(_CLIENT_TASK.search, instruction.split("\n")))


def _is_small_talk(text: str) -> bool:
    said = [word.lower() for word in re.findall(r"[\w'’-]+", text[:READ_CHARS])]
    if len(text) < READ_CHARS and _INTRODUCTION.match(text):
        return True
    return (
        len(said) <= SMALL_TALK_WORDS
        and len(text) < READ_CHARS
        and not _WORDS["small_talk"].isdisjoint(said)
        and (_WORDS["small_talk"] | _WORDS["fillers"]).issuperset(said)
    )


def _is_about(text: str, said: Sequence[tuple[str, str]]) -> bool:
    if len(text) > 2 * READ_CHARS:
        return False
    if _SHORT_CHANGE.search(text) or _ABOUT_SAID.search(text):
        return True
    for each in _sentences(text):
        changes = _CHANGE.search(each) and (_SAID.search(each) or _AGAIN.search(each))
        if changes or _REPEAT.search(each):
            return True
    return _is_told(text, [each for who, each in said if who == "human"])


def _is_told(text: str, messages: Sequence[str]) -> bool:
    """Return whether users ask for something that they have said about themselves."""
    if not _FIRST_PERSON.search(text):
        return False
    asked = {
        word
        for word in content_words(text, "", "en")
        if word not in _WORDS["asking"] and not _FIRST_PERSON.fullmatch(word)
    }
    told = (
        terms(each, "en")
        for message in messages
        for each in _sentences(message[:QUERY_CHARS])
        if not each.endswith("?") and _FIRST_PERSON.search(each)
    )
    return bool(asked) and any(asked <= each for each in told)


def _is_task(text: str) -> bool:
    """Return whether a message asks for writing, code or sums, or brings the text it is about."""
    if _SUM.match(text[:READ_CHARS]) and len(text) < READ_CHARS:
        return True
    last = text[-READ_CHARS:].strip().rsplit("\n", 1)[-1]
    brings = len(text) > PASTED_CHARS or "\n" in text.strip() or _QUOTED.search(text)
    if brings and any(map(_WORK.match, (text, last))):
        return True
    made = _MAKE.match(first_line(text)[:READ_CHARS])
    rest = (made["rest"] or made["chinese"] or "") if made else ""
    return bool(_PIECE.search(rest[:100])) and not _OF_DOCUMENTS.search(text[:READ_CHARS])
