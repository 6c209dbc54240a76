"""Two collections of look-alikes, for fusing.py: identifiers that differ in one character.

`dev` has part numbers and versions, `test` ticket ids, people's names and error codes; 60 questions
each. All texts are made up here.
"""

import random
import re
from typing import NamedTuple

DIGITS, LETTERS = "0123456789", "aeioulnrst"


class Kind(NamedTuple):
    """Families of identifiers, with texts and questions about each.

    In a text and in a question, `ID` is the identifier, and `{a|b|c}` one of several.
    """

    starts: tuple[str, ...]
    size: int
    asked: int
    text: str
    questions: tuple[str, ...]
    alphabet: str = DIGITS


NUMBER = "{4|7|9|12|15|18|23|27|31|36|44|52}"
PARTS = Kind(
    ("ZK-4471-B", "GP-20815", "6204-2RZ-C3", "PSW-118-K", "SC-7730-24"),
    20,
    6,
    f"The {{valve|pump|bearing|switch|coil}} ID is made of {{brass|steel|bronze}} and withstands "
    f"up to {NUMBER} bar. Its bolts are tightened with {NUMBER} Nm. It is serviced every {NUMBER} "
    f"months, and is mostly found in {{dairies|paper mills|ferries|greenhouses}}. Spare seals are "
    f"kept in shelf {{A|B|C|D}}{NUMBER}.",
    (
        "What pressure can the ID take?",
        "How firmly are the bolts of ID tightened?",
        "How often does ID need maintenance?",
        "Where are spare seals for ID stored?",
    ),
)
VERSIONS = Kind(
    ("Fennel 4.12.3", "Quillbase 11.0.7", "Tidewater 2023.4.1"),
    34,
    10,
    "Release notes of ID. In this version {the export|the login page|the backup|the map view|the "
    "calendar}, which {crashed on empty input|was slow with many users|lost the last line|leaked "
    "memory}, has been repaired. {The search field|The importer} was redesigned by {the team in "
    f"Oslo|volunteers|an agency|two trainees}}. Upgrading takes about {NUMBER} minutes.",
    (
        "What was fixed in ID?",
        "How long does the upgrade to ID last?",
        "Who redesigned something in version ID?",
    ),
)
TICKETS = Kind(
    ("HELP-20481", "INC0094417"),
    50,
    10,
    "Ticket ID was opened by {the warehouse|the front desk|the laboratory|the night shift} because "
    "nothing could be printed. The technician found {a worn cable|an expired certificate|a full "
    f"disk|a blocked account}} after {NUMBER} hours. It was closed once {{a spare part had come|"
    "the vendor had called back|everybody had signed}.",
    (
        "What was the cause in ID?",
        "Who reported ID?",
        "When could ID be closed?",
        "How long did it take to solve ID?",
    ),
)
NAMES = Kind(
    ("Marta Kellner", "Jonas Weidmar", "Elin Sorvik", "Petra Halmos"),
    25,
    5,
    "ID {leads the choir|repairs clocks|teaches chemistry|keeps bees} in {Ulm|Bergen|Porto|Galway|"
    "Turku} and moved there in 20{01|04|09|13|17}. Before that, ID worked for {a bank|a circus|the "
    "railway|a publisher}. The garden behind the house is open on {Sundays|Mondays|holidays}.",
    (
        "What does ID do for a living?",
        "Which town does ID live in?",
        "Who employed ID earlier?",
        "When can one visit the garden of ID?",
    ),
    LETTERS,
)
ERRORS = Kind(
    ("0x80070057", "E1204-F"),
    50,
    10,
    "Error ID: the {drum|lamp|feeder|door|fan} does not answer. {Switch the machine off for a "
    "minute|Open the cover and remove the paper|Call the service line|Update the firmware}. The "
    f"counter then restarts at {NUMBER}.",
    (
        "What should I do about error ID?",
        "The display says ID, what is broken?",
        "What is the meaning of ID?",
    ),
)
HALVES = {"dev": (PARTS, VERSIONS), "test": (TICKETS, NAMES, ERRORS)}


def collection(half: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the texts by their identifiers, and questions with the identifier of each."""
    rng, texts, questions = random.Random(29), {}, []
    for kind in HALVES[half]:
        for start in kind.starts:
            for number, ident in enumerate(_family(rng, start, kind)):
                texts[ident] = _filled(rng, kind.text, ident)
                if number < kind.asked:
                    questions.append((_filled(rng, rng.choice(kind.questions), ident), ident))
    return texts, questions


def _family(rng: random.Random, start: str, kind: Kind) -> list[str]:
    """Return identifiers, each of which differs from another in one character."""
    found = [start]
    while len(found) < kind.size:
        near = rng.choice(found)
        at = rng.choice([place for place, each in enumerate(near) if each in kind.alphabet])
        new = near[:at] + rng.choice(kind.alphabet.replace(near[at], "")) + near[at + 1 :]
        if new not in found:
            found.append(new)
    return found


def _filled(rng: random.Random, template: str, ident: str) -> str:
    text = re.sub(r"\{(.*?)\}", lambda each: rng.choice(each[1].split("|")), template)
    return re.sub(r"\bID\b", ident, text)
