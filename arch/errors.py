"""The one error for everything that a person can get wrong."""


class InputError(ValueError):
    """Bad input: its message is one line that names the place, the value, the rule and the nearest right value."""
