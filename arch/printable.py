"""Text of others on a terminal: what would steer it is written as an escape."""


def printable(text: str) -> str:
    """A text whose characters are all printable: control codes and half characters stand there as `\\x1b`."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
