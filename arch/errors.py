"""The one error for everything that a person can get wrong."""

from arch.printable import printable


class InputError(ValueError):
    """Bad input: its message is one line that names the place, the value, the rule and the nearest right value.

    Whatever is no printable character in what it quotes stands there as an escape.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def what_is_wrong(error: Exception) -> str:
    """In words of what a damaged file holds, an error met while it was read: a missing key by its name."""
    return f"has no {error}" if isinstance(error, KeyError) else str(error)
