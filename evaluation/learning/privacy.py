"""Finds personal data in a text by its form; names and addresses have none."""

import re
from collections.abc import Callable, Sequence
from functools import cache

_NUMBER = re.compile(r"\d(?:[ \u00a0\u202f./()–-]{0,2}\d){6}")
_DATE = re.compile(
    r"(?<![\d./–-])(?:\d{4}-\d{2}-\d{2}|\d{1,2}[./-]\d{1,2}[./-]\d{4}|\d{4}\s?[–/-]\s?\d{4})(?![\d/–-])"
)
_HANDLE = re.compile(r"@\w")
_IPV6 = re.compile(r"(?<![\w:])(?=\S*::|(?:[^:\s]*:){3})[0-9A-Fa-f:]{3,}(?![\w:])")


def personal(text: str, more: Sequence[re.Pattern[str]] = ()) -> str | None:
    """Return the kind of personal data found in a text; None if there is none.

    Forms are e-mail addresses, web addresses, IP and MAC addresses (by LangChain's detectors, but
    for IPv6), names after an @, and numbers of seven digits or more, such as those of phones, cards
    and accounts. Dates and ranges of years do not count. Names of people, postal addresses and
    descriptions are not found.

    Args:
        text: The text.
        more: Patterns of the operator's own.
    """
    for name, found in _detectors().items():
        if found(text):
            return name
    return "excluded" if any(each.search(text) for each in more) else None


@cache
def _detectors() -> dict[str, Callable[[str], object]]:
    from langchain.agents.middleware.pii import (
        detect_email,
        detect_ip,
        detect_mac_address,
        detect_url,
    )

    return {
        "e-mail address": detect_email,
        "web address": detect_url,
        "network address": lambda text: (
            detect_ip(text) or detect_mac_address(text) or _IPV6.search(text)
        ),
        "name after an @": _HANDLE.search,
        "long number": lambda text: _NUMBER.search(_DATE.sub("", text)),
    }
