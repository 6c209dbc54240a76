"""The language of a collection, and the words that BM25 sees."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from indexing import HashEncoder
from numpy.typing import NDArray

from hopgate.common.words import spaced
from hopgate.retrievers.automode import default_mode
from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.encoders import load_encoder
from hopgate.retrievers.language import LANGUAGES, analyzer, detect

SENTENCES = {
    "ar": "تقع المنارة على الساحل الشمالي وقد بناها مهندس من العاصمة في القرن الماضي.",
    "da": "Fyret ligger på nordkysten, og det blev bygget af en ingeniør, som kom fra hovedstaden.",
    "de": "Der Leuchtturm steht an der Nordküste und wurde von einem Ingenieur der Stadt gebaut.",
    "el": "Ο φάρος βρίσκεται στη βόρεια ακτή και χτίστηκε από έναν μηχανικό της πρωτεύουσας.",
    "en": "The lighthouse is on the north coast and was built by an engineer from the capital.",
    "es": "El faro está en la costa norte y fue construido por un ingeniero de la capital.",
    "fi": "Majakka on pohjoisrannikolla, ja sen rakensi insinööri, joka oli kotoisin kaupungista.",
    "fr": "Le phare est sur la côte nord et il a été construit par un ingénieur de la capitale.",
    "hu": "A világítótorony az északi parton van, és egy mérnök építette, aki a fővárosból jött.",
    "it": "Il faro si trova sulla costa nord ed è stato costruito da un ingegnere della capitale.",
    "ja": "灯台は北の海岸にあり、首都から来た技師によって建てられました。",
    "ko": "등대는 북쪽 해안에 있으며 수도에서 온 기술자가 지었습니다.",
    "nl": "De vuurtoren staat aan de noordkust en werd gebouwd door een ingenieur uit de stad.",
    "no": "Fyret ligger på nordkysten, og det ble bygget av en ingeniør som kom fra hovedstaden.",
    "pt": "O farol fica na costa norte e foi construído por um engenheiro que veio da capital.",
    "ro": "Farul este pe coasta de nord și a fost construit de un inginer care a venit din oraș.",
    "ru": "Маяк стоит на северном берегу, и его построил инженер, который приехал из столицы.",
    "sv": "Fyren ligger på nordkusten och den byggdes av en ingenjör som kom från huvudstaden.",
    "ta": "கலங்கரை விளக்கம் வடக்கு கடற்கரையில் உள்ளது, அதை ஒரு பொறியாளர் கட்டினார்.",
    "th": "ประภาคารตั้งอยู่บนชายฝั่งทางเหนือและสร้างโดยวิศวกรจากเมืองหลวง",
    "tr": "Deniz feneri kuzey kıyısında ve başkentten gelen bir mühendis için çok önemli bir yapı.",
    "zh": "灯塔位于北部海岸，由一位来自首都的工程师建造。",
    "other": "Latarnia morska stoi na północnym wybrzeżu i została zbudowana przez inżyniera.",
}


def test_every_language_has_a_sentence_here() -> None:
    assert set(SENTENCES) == set(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_language_of_one_sentence_is_detected(language: str) -> None:
    assert detect([SENTENCES[language]]) == language


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_an_analyzer(language: str) -> None:
    assert analyzer(language).analyze(spaced(SENTENCES[language]))


XQUAD = Path(__file__).parents[2] / "shared" / "data" / "xquad"


def xquad(language: str) -> list[Passage]:
    path = XQUAD / f"{language}.dev.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is missing: it is not part of the repository")
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [make_passage("", row["context"]) for row in rows]


@pytest.mark.parametrize("language", ["ar", "de", "en", "es", "ru", "zh"])
def test_real_paragraphs_are_detected(language: str) -> None:
    passages = xquad(language)
    assert detect(each["text"] for each in passages) == language
    right = [detect([each["text"]]) == language for each in passages]
    assert sum(right) >= 0.97 * len(right)


@pytest.mark.parametrize("texts", [[], [""], ["1234 5678"], ["!?"]])
def test_without_words_the_language_is_other(texts: list[str]) -> None:
    assert detect(texts) == "other"


@pytest.mark.parametrize(
    "text",
    [
        "Маяк стоїть на північному узбережжі, і його збудував інженер, який приїхав зі столиці.",
        "Maják stojí na severním pobřeží a postavil ho inženýr, který přišel z hlavního města.",
        "Ngọn hải đăng nằm ở bờ biển phía bắc và được xây dựng bởi một kỹ sư đến từ thủ đô.",
        "Svjetionik stoji na sjevernoj obali i sagradio ga je inženjer iz glavnog grada.",
        "दीपस्तंभ उत्तरी तट पर है और इसे राजधानी के एक इंजीनियर ने बनाया था।",
    ],
)
def test_ukrainian_czech_vietnamese_croatian_and_hindi_are_other(text: str) -> None:
    assert detect([text]) == "other"
    assert analyzer("other").analyze(spaced(text))


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown language 'xx'; use one of ar, da"):
        analyzer("xx")


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("en", "the lighthouses", "Lighthouse"),
        ("de", "die Leuchttürme der Stadt", "leuchtturm den Städten"),
        ("ru", "маяков", "маяками"),
        ("es", "los faros", "el faro"),
        ("es", "la mecánica", "mecanica"),
        ("en", "the résumé of Čapek", "resume Capek"),
        ("ar", "المنارة", "منارة"),
        ("tr", "fenerler", "fener"),
        ("ja", "ＡＢＣ　１２３　ﾃｽﾄ", "abc 123 テスト"),
        ("en", "北京 Café", "café 北京"),
    ],
)
def test_forms_of_a_word_are_one_term(language: str, one: str, other: str) -> None:
    terms = analyzer(language).analyze
    assert set(terms(spaced(one))) == set(terms(spaced(other))) != set()


class TopicEncoder(HashEncoder):
    """Knows every language by construction: the vector of a text is that of its paragraph."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        super().__init__()
        self.texts = ["".join(each["text"].split()) for each in passages]

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        squeezed = ["".join(text.split()) for text in texts]
        return np.array([[each in own for own in self.texts] for each in squeezed], np.float32)


@pytest.mark.parametrize("language", ["zh", "de", "en"])
def test_auto_is_hybrid_with_an_encoder_that_knows_the_language(language: str) -> None:
    passages = xquad(language)
    first, second = (default_mode(passages, TopicEncoder(passages), language) for _ in range(2))
    assert first == second
    assert first[0] == "hybrid"
    assert default_mode(passages, HashEncoder(), language)[0] == "bm25"


def test_auto_sees_what_minilm_knows() -> None:
    mode, reason = default_mode(xquad("en"), load_encoder(), "en")
    assert mode == "hybrid"
    assert re.search(r"first sentence: 0\.\d\d dense, 0\.\d\d BM25, 0\.\d\d hybrid", reason)
    mode, reason = default_mode(xquad("zh"), load_encoder(), "zh")
    assert mode == "bm25"
    assert reason.startswith("the encoder does not know the language; mean reciprocal rank")


@pytest.mark.parametrize("count", [0, 1, 7])
def test_auto_is_hybrid_where_there_is_too_little_to_measure(count: int) -> None:
    passages = [make_passage("", f"{text} {text[::-1]}") for text in SENTENCES.values()]
    mode, reason = default_mode(passages[:count], HashEncoder(), "other")
    assert (mode, reason) == ("hybrid", "too few passages to measure the encoder")


def test_auto_is_hybrid_where_both_find_nearly_all() -> None:
    names = [hashlib.sha256(bytes([number])).hexdigest()[:12] for number in range(60)]
    texts = [f"The lighthouse {name} is on the coast. {name} was built in 1858." for name in names]
    passages = [make_passage("", text) for text in texts]
    assert default_mode(passages, TopicEncoder(passages), "en")[0] == "hybrid"


def test_auto_measures_texts_without_words() -> None:
    passages = [make_passage("", f"{'!' * (30 + n)} {'?' * 40}. {'-' * 40}") for n in range(30)]
    assert default_mode(passages, HashEncoder(), "en")[0] == "hybrid"
