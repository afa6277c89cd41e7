"""A kernel's configuration: what can be chosen of a kernel of one kind, as people write and read it.

A class of configurations declares its words once (`grammar`); by them a configuration prints as the schedule that asks
for it, and is read from that. What else a chooser wants to know (whether machine and problem can take it, how long it
would take, what is left of it without a mechanism) are methods of its class, so that nobody asks for its type.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from arch.digits import whole_number
from arch.errors import InputError
from arch.near import hint

C = TypeVar("C", bound="Configuration")


@dataclass(frozen=True)
class Word:
    """One word of a configuration's text, with the fields that it stands for.

    Args:
        fields: names of the fields; several are numbers joined by `x`, such as a tile.
        text: the word itself; empty for values that stand by themselves.
        unless: the fields' values of which nothing is written; None: they are always written.
        value: of the field where the word stands; it is the other one where it is missing.
        among: the texts that are values by themselves.
    """

    fields: tuple[str, ...]
    text: str = ""
    unless: tuple[int, ...] | None = None
    value: bool | None = None
    among: tuple[str, ...] = ()

    @classmethod
    def tile(cls, *names: str) -> Word:
        """The extents of a tile, such as `128x256x64`; the last of three may be left out where it is read."""
        return cls(names)

    @classmethod
    def number(cls, field: str, unless: int | None = None, text: str = "") -> Word:
        """A number behind a word, `stages 4`; nothing is written of the number `unless`."""
        return cls((field,), text or field, None if unless is None else (unless,))

    @classmethod
    def flag(cls, text: str, field: str = "", value: bool = True) -> Word:
        """A word that stands where a field has a value, by default its own name where it is true."""
        return cls((field or text,), text, value=value)

    def written(self, config: Configuration) -> list[str]:
        """The words of a configuration."""
        values = tuple(getattr(config, field) for field in self.fields)
        if self.value is not None:
            return [self.text] if values[0] == self.value else []
        if values == self.unless:
            return []
        return [*([self.text] if self.text else []), "x".join(map(str, values))]

    @property
    def missing(self) -> dict[str, Any]:
        """The fields where nothing is written, as far as the word says it."""
        if self.value is not None:
            return {self.fields[0]: not self.value}
        return dict(zip(self.fields, self.unless or (), strict=False))

    def takes(self, word: str) -> bool:
        """Whether a word of a text begins what this one stands for."""
        if self.text:
            return word == self.text
        return word in self.among if self.among else re.fullmatch(_joined(2, len(self.fields)), word) is not None

    def read(self, word: str, rest: Sequence[str], where: str) -> tuple[dict[str, Any], int]:
        """The fields of a word and what follows it, and how much of that belongs to it. InputError if it is wrong."""
        if self.value is not None:
            return {self.fields[0]: self.value}, 0
        if self.among:
            return {self.fields[0]: word}, 0
        if not self.text:
            return dict(zip(self.fields, map(int, word.split("x")), strict=False)), 0
        value, count = rest[0] if rest else "", len(self.fields)
        if count == 1:
            number = whole_number(value)
            if number is None:
                raise InputError(f"{where}: {word} needs a number, such as {word} 4")
            return {self.fields[0]: number}, 1
        if not re.fullmatch(_joined(count, count), value):
            raise InputError(f"{where}: {word} needs two numbers, such as {word} 2x1")
        return dict(zip(self.fields, map(int, value.split("x")), strict=True)), 1


def _joined(least: int, most: int) -> str:
    return rf"[0-9]{{1,9}}(x[0-9]{{1,9}}){{{least - 1},{most - 1}}}"


class Configuration:
    """What can be chosen of a kernel of one kind. Subclasses are frozen dataclasses.

    schedule: the kind, under which the registry knows who builds the kernel. grammar: the words of the fields, in the
    order in which they are written.
    """

    if TYPE_CHECKING:

        @property
        def schedule(self) -> str:
            """The kind."""

    grammar: ClassVar[tuple[Word, ...]] = ()

    def __str__(self) -> str:
        return " ".join([self.schedule, *(text for word in self.grammar for text in word.written(self))])

    def without(self, mechanism: str) -> str:
        """The schedule that is left without a mechanism; the same where the kernel does not use it."""
        return str(self)

    def as_said(self, text: str) -> Self:
        """The configuration with what a text says of it, and without what it leaves out, as far as there is a without.
        InputError for a word that is none of the class."""
        return replace(self, **(self.left_out() | self.read(text)))  # type: ignore[type-var]

    def changed(self, text: str) -> Self:
        """The configuration with what a text says of it. InputError for a word that is none of the class."""
        try:
            return replace(self, **self.read(text))  # type: ignore[type-var]
        except InputError as error:
            raise InputError(f"{error}; write {self}") from None

    @classmethod
    def left_out(cls) -> dict[str, Any]:
        """Fields of which a text says nothing, as far as that says what they are."""
        return {field: value for word in cls.grammar for field, value in word.missing.items()}

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        """The fields that a text names. InputError for a word that is none of the class."""
        name, *words = text.split()
        where = f"schedule={text}"
        found: dict[str, Any] = {}
        while words:
            word, *words = words
            meant = next((one for one in cls.grammar if one.takes(word)), None)
            if meant is None:
                near = hint(
                    word, [one for known in cls.grammar for one in ([known.text] if known.text else known.among)]
                )
                raise InputError(f"{where}: {word} is no word of a {name} configuration{near}")
            more, taken = meant.read(word, words, where)
            found |= more
            words = words[taken:]
        return found

    @classmethod
    def parse(cls, text: str) -> Self:
        """The configuration of a text. InputError where the text lacks what has no default."""
        values = cls.left_out() | cls.read(text)
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        try:
            return cls(**{name: value for name, value in values.items() if name in known})
        except TypeError:
            lacking = next(one for one in cls.grammar if not set(one.fields) <= values.keys())
            such = f"{lacking.text} 4" if lacking.text else "x".join(["64"] * len(lacking.fields))
            raise InputError(f"schedule={text}: {' and '.join(lacking.fields)} are missing, such as {such}") from None


def class_of(text: str, among: Sequence[type[C]]) -> type[C]:
    """The class of the configuration that a text describes, by its first word. InputError where that is none."""
    known = {str(one.schedule): one for one in among}
    name = text.split()[0]
    if name not in known:
        kinds = f"one of auto, {', '.join(known)}, or a whole configuration"
        raise InputError(f"schedule={text}: {name} is no schedule; {kinds}{hint(name, known)}")
    return known[name]
