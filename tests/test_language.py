"""The language of a collection, and the words that BM25 sees."""

import pytest

from hopgate.common.words import spaced
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
