"""The text of an error, as a message that a user reads in one line can hold it."""


def one_line(text: object) -> str:
    """Return a text, or an error's text, with its lines and spaces joined."""
    return " ".join(str(text).split())


def reason(error: BaseException, limit: int | None = None) -> str:
    """Return an error's text on one line, cut to `limit` characters; its type if it has none."""
    return one_line(error)[:limit] or type(error).__name__
