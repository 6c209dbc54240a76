"""Who counts as an authenticated user, in the forms that servers give."""

from collections.abc import Mapping

NOBODY = "anonymous"
"""The name that servers without authentication give to everyone."""


def identity(user: object) -> str | None:
    """Return the name of an authenticated user.

    Args:
        user: An object with the attributes `identity` and `is_authenticated`, or a mapping with
            these keys; without `is_authenticated`, the user counts as authenticated.

    Returns:
        The name; None if nobody is authenticated, or they have no name of their own.
    """
    if isinstance(user, Mapping):
        name, is_known = user.get("identity"), user.get("is_authenticated", True)
    else:
        try:
            name = getattr(user, "identity", None)
            is_known = getattr(user, "is_authenticated", True)
        except NotImplementedError:  # Starlette's base class leaves them out
            return None
    return name if is_known and isinstance(name, str) and name.strip() not in ("", NOBODY) else None
