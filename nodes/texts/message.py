"""What a message asks for, by rules that cost no call: facts, or what needs no search.

The rules are meant to be sure, not complete: what they do not know is a question, which the gate
decides. They read English, and the commonest words of German, French, Spanish and Chinese.
"""

import re
from collections.abc import Sequence
from typing import Literal

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hopgate.common.words import sentences, words
from hopgate.nodes.texts.support import content, terms
from hopgate.nodes.texts.text import first_line

Kind = Literal["question", "conversation", "small_talk", "task", "client_task"]

QUERY_CHARS = 1_000
"""Of what is decided on and searched for; the encoders read no more."""
READ_CHARS = 300
"""Of the start and of the end of a message, where people say what they want done with the rest."""
PASTED_CHARS = 400
TRANSCRIPT_CHARS = 20_000
SMALL_TALK_WORDS = 12


class MessageDecision(TypedDict):
    """What the message asks for, and who says so."""

    kind: Kind
    """question: perhaps facts, so gate and router decide. The others need no search. conversation:
    it is about what was said; small_talk: a greeting, thanks or an introduction; task: writing,
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


def _either(choices: str, *more: str) -> str:
    """Return a pattern for any of the choices, which semicolons separate."""
    return f"(?:{'|'.join([*choices.split('; '), *more])})"


def _search(pattern: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | flags)


_POLITE = (
    r"^\W*(?:"
    + _either(
        "please; pls; now; ok(?:ay)?; and; then; great; thanks; hi; hey; hello; can; could; would; "
        "will; you; just; also; kannst; könntest; du; bitte; jetzt; peux-tu; pouvez-vous; "
        "por favor; puedes; s'il (?:te|vous) pla[iî]t"
    )
    + r"\b[\s,!.]*|[请請]\s*)*"
)
_WORK = _either(
    "summari[sz]e; sum up; recap; translate; proofread; re-?write; rephrase; paraphrase; re-?word; "
    "shorten; simplify; correct; fix; improve; edit; polish; extract; condense; convert; reformat; "
    "format; tl;?dr; übersetze?n?; fasse?; korrigiere?n?; kürze?n?; traduis\\w*; traduire; "
    "résume\\w*; corrige\\w*; traduce; traducir; resume; resumir; "
    "翻译; 翻譯; 总结; 總結; 润色; 改写"
)
_DO = _either(
    "expand; elaborate; explain; clarify; continue; make; put; turn; say; list; give; show; write; "
    "state; mach; sag; erkläre?; schreibe?; wiederhole?; explique\\w*; explica\\w*",
    _WORK,
)
_CHANGE = _search(_POLITE + _DO)
_REPEAT = _search(_POLITE + r"(?:repeat|wiederhole?|répète|repite)\b")
_SAID = _search(
    r"\b(?:your|the|that|this) (?:(?:last|previous|first|earlier|second|above) )?"
    + _either("answer; reply; response; message; explanation; paragraph; sentence; point")
    + r"s?\b|\byou (?:just )?"
    + _either("said; told; wrote; mentioned; gave; listed; explained")
    + r"\b|\b(?:we|i) (?:have )?"
    + _either("talked; discussed; said; told; asked; covered")
    + r"\b|\bso far\b|\b(?:our|this|the) (?:conversation|chat|discussion)\b|\babove\b"
    r"|\b(?:dein|ihr)e? (?:letzte\w* )?antwort|\b(?:ta|votre) (?:dernière )?réponse"
    r"|\btu (?:última )?respuesta|上面|刚才|你的回答"
)
_AGAIN = _search(  # "translate that to German", "make it shorter", "explain this again"
    _DO
    + r"\s+(?:me\s+)?"
    + _either("it; that; this; them; those; everything; das; es; ça; eso")
    + r"(?=\s*(?:$|[.!?]|"
    + _either(
        "again; once more; in(?:to)?\\b; to\\b; as an?\\b; more; less; simpl; short; long; better; "
        "friendl; formal; please; bitte; auf\\b; ins?\\b; en\\b; al\\b; noch; kürzer; plus; más"
    )
    + "))"
)
_SHORT_CHANGE = _search(
    r"^\W*(?:"
    + _either(
        "please; pls; now; ok(?:ay)?; and; a bit; much; even; (?:the )?same,? but; again,? but; "
        "bitte; etwas; noch"
    )
    + r"\W+)*"
    + _either(
        "go on; continue; carry on; keep going; again; once more; shorter; longer; simpler; "
        "more simply; more detail(?:s|ed)?; (?:more|less) formal; kürzer; länger; einfacher; "
        "plus court; plus simple; más corto; más simple; tl;?dr; mach weiter; weiter; continuez; "
        "sigue; 继续; 繼續; in (?:one|a single|two|other) (?:sentence|word|line)s?; "
        "as (?:an? )?(?:table|list|bullet(?: point|ed list)?s?|poem|json|haiku|e-?mail); "
        "in (?:english|german|french|spanish|italian|chinese|japanese|portuguese|russian|dutch); "
        "auf (?:deutsch|englisch|französisch|spanisch); en (?:français|anglais|allemand|español); "
        "用(?:英文|中文|德语)(?:说|写)?"
    )
    + r"\W*(?:please|bitte|pls|merci|por favor)?\W*$"
)
_ABOUT_SAID = _search(
    r"\b(?:did|have|had)(?:n't)? (?:i|you|we) (?:just |first |already |originally )?"
    + _either(
        "say; said; ask; asked; tell; told; mention; mentioned; talk; talked; discuss; discussed; "
        "call; called; write; wrote; mean; recommend; suggest; list; quote"
    )
    + r"\b|\bmy (?:first|last|previous|earlier|original|second) (?:question|message|request)"
    r"|\bwhat(?:'s| is| was) my name\b|\bwho am i\b|\bwhat were we\b"
    r"|\bdo you (?:still )?(?:remember|know) (?:my|what i|who i|where i|which)\b"
    r"|\byou (?:just )?(?:said|told me|mentioned)\b.*\?|\bwie hei(?:ß|ss)e ich\b"
    r"|\bhabe ich (?:dich |dir |zuerst )*ge(?:fragt|sagt)|\bcomment je m'appelle\b"
    r"|\bai-je (?:demandé|dit)|\bcómo me llamo\b|我叫什么|我(?:刚才|最先|第一)"
)
_INTRODUCTION = _search(
    r"^\W*(?:(?:hi|hello|hey|hallo|bonjour|hola)\b\W*)?"
    + _either(
        "my name is; i'm called; call me; i(?:'m| am) (?:from|\\w+,? and i (?:work|live)); "
        "i work (?:in|at|for); i live in; "
        "ich hei(?:ß|ss)e; mein name ist; je m'appelle; me llamo"
    )
    + r"(?!.*(?:\?|\b(?:need|want|looking|how|can|can't|could|help|brauche|voudrais)\b))",
    re.DOTALL,
)
_FIRST_PERSON = _search(
    r"\b"
    + _either("i; i'm; i've; my; me; we; our; ich; mein\\w*; je; mon; ma; mes; yo; mi; soy")
    + r"\b|我"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ASKING = _words(
    "what which who whom whose when where why how do does did is are was were am be can could "
    "should would will have has had get got again please called tell remind exactly"
)
_SMALL_TALK = _words(
    "hi hello hey hiya howdy thanks thank thx ty cheers bye goodbye ok okay great cool nice "
    "perfect awesome wonderful welcome morning evening afternoon hallo moin servus danke "
    "dankeschön tschüss guten bonjour bonsoir salut merci hola buenos buenas gracias adiós ciao "
    "grazie olá obrigado obrigada привет спасибо 你好 您好 谢谢 谢谢你 謝謝 嗨 再见"
)
_FILLERS = _words(
    "there everyone all again so very much a lot you for your the that this that's it it's was is "
    "were are how doing today day good help helps helped helpful answer really super and to i i'm "
    "me see later have one up what's well fine then got understood clear vielen viele dank tag "
    "abend sehr mal beaucoup bien muchas mucho días tardes noches wie geht's dir es bis bald bot"
)
_MAKE = _search(
    _POLITE
    + _either(
        "help me write; write; compose; draft; create; make up; make; generate; give me; tell me; "
        "code; implement; invent; come up with; suggest; schreibe?; dichte?; erfinde; écris; "
        "rédige; escribe"
    )
    + r"\b(?P<rest>.*)|^[请請]?[写寫编](?P<chinese>.*)",
    re.DOTALL,
)
_PIECE = _search(
    r"\b"
    + _either(
        "poem; haiku; limerick; sonnet; song; lyrics; rap; story; stories; tale; jokes?; riddle; "
        "rhyme; slogans?; toast; speech; essay; birthday; thank-?you; congratulat\\w+; apology; "
        "e-?mail; letter; tweet; function; script; program; reg(?:ular )?ex(?:pression)?; class; "
        "unit tests?; sql; query; loop; decorator; snippet; html; css; bash; python; javascript; "
        "typescript; java; rust; one-liner; names? for; gedicht; geschichte; witz; lied; funktion; "
        "programm; brief; poème; histoire; blague; fonction; lettre; poema; historia; chiste; "
        "función; carta"
    )
    + r"\b|诗|故事|笑话|函数|代码"
)
_OF_DOCUMENTS = _search(
    r"\b"
    + _either(
        "our; polic(?:y|ies); handbook; guide\\w*; documentation; docs; manual; according to; "
        "current\\w*; latest; official; opening; unser\\w*; notre; nuestr\\w+; laut; selon; según; "
        "API; SDK; CLI; what we know; the (?:new|company|team|product)"
    )
    + r"\b"
)
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
    r"^\W*task\b|\b"
    + _either(
        "generate; create; provide; suggest; write; give; come up with; summari[sz]e; name; make; "
        "return; determine"
    )
    + r"\b.{0,120}\b"
    + _either(
        "titles?; tags?; names?; topics?; follow-?ups?; questions; summary; emoji; quer(?:y|ies); "
        "conversation; chat; session"
    )
    + r"\b",
    re.DOTALL,
)


def decide(text: str, said: Sequence[tuple[str, str]], system: str = "") -> MessageDecision:
    """Decide by rules what a message asks for.

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
    """Return what a turn's message asks for; a question, if its decision does not say."""
    message = decision.get("message") if isinstance(decision, dict) else None
    return message["kind"] if message else "question"


def forced() -> MessageDecision:
    """Return the decision of a request for short answers: every message is a question."""
    return MessageDecision(
        kind="question", source="rules", reason="short answers take every message for a question"
    )


def about_conversation() -> MessageDecision:
    """Return the decision of a model that needs nothing but the conversation."""
    return MessageDecision(
        kind="conversation", source="model", reason="the model can reply from the conversation"
    )


def query(text: str, chars: int = QUERY_CHARS) -> str:
    """Return what to decide on and search for: a short message itself, or a long one's question.

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
        and not _SMALL_TALK.isdisjoint(said)
        and all(word in _SMALL_TALK or word in _FILLERS for word in said)
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
    """Return whether the user asks about themselves what they have told before."""
    if not _FIRST_PERSON.search(text):
        return False
    asked = {
        word
        for word in content(text, "", "en")
        if word not in _ASKING and not _FIRST_PERSON.fullmatch(word)
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
    if brings and any(re.match(_POLITE + _WORK + r"\b", each, re.I) for each in (text, last)):
        return True
    made = _MAKE.match(first_line(text)[:READ_CHARS])
    rest = (made["rest"] or made["chinese"] or "") if made else ""
    return bool(_PIECE.search(rest[:100])) and not _OF_DOCUMENTS.search(text[:READ_CHARS])
