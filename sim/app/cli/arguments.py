"""What subcommands share: options under the same names and words, checked values, and files that are written."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from arch.digits import whole_number
from arch.errors import InputError
from arch.near import hint
from sim.app.whole_file import replacing

if TYPE_CHECKING:
    from sim.app.report.render import Shown

PICTURES = (".png", ".svg", ".pdf")
FILES = ("plot", "html", "show_array", "csv", "out")
"""Options that name a file to write."""

_LONGEST_NAME = 200
"""Bytes of a file's name: file systems take 255, and the file that is written first has a longer one."""

Add = Callable[..., Any]


class _Extend(argparse.Action):
    """Takes a list in place of the default, and more of it where the option is repeated."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        now = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*([] if now is self.default else now), *values])


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all others, and whose help is about the operator if one is named."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(add_help=False, **keywords)
        self.register("action", "extend", _Extend)
        self.add_argument("-h", "--help", action=_Help, help="show this, or of an OP its keys, and exit")
        self.set_defaults(parser=self)

    @property
    def option_words(self) -> list[str]:
        """All options that it takes, as they are typed."""
        return list(self._option_string_actions)

    @property
    def commands(self) -> Mapping[str, Parser]:
        """Parsers of its subcommands, by their names."""
        actions = self._subparsers._group_actions if self._subparsers else []
        return next((action.choices for action in actions if isinstance(action.choices, dict)), {})

    def error(self, message: str) -> NoReturn:
        """Raises InputError with argparse's message."""
        raise InputError(f"{message} (see {self.prog} --help)")


class _Help(argparse.Action):
    """Prints the parser's help, or the keys of the operator that stands before it."""

    def __init__(self, option_strings: Sequence[str], dest: str, **keywords: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **keywords)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        """Prints and exits."""
        word = getattr(namespace, "operator", None)
        if word is None:
            parser.print_help()
        else:
            from sim.app.operators import described

            show(described(word), json=False)
            print(f"\nOptions: {parser.prog} --help")
        parser.exit()


# ------------------------------------------------------------------------------------------------------------- options


def add_workload(parser: Parser, needed: bool = True) -> None:
    """OP k=v ...; keys may also follow the options (`parse`). needed: whether nothing can stand in its place."""
    words = (
        "such as: gemm m=4096 n=4096 k=4096 dtype=bf16; or FILE.py:FUNCTION, a program of your own: executes the file"
    )
    add: Add = parser.add_argument
    add("operator", metavar="OP", help=words, **({} if needed else {"nargs": "?"}))
    parser.add_argument(
        "keys", nargs="*", default=[], metavar="k=v", help=f"its keys; {parser.prog} OP --help or tilewave ops OP"
    )
    parser.add_argument("--file", metavar="FILE", help="of a network: as the key file=FILE")


def parse(parser: Parser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of one command line, with `workload` as one text. InputError for what no option takes.

    argparse takes the words of a positional argument in one piece: keys that stand behind an option are left over.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    wrong = next((word for word in words if "\0" in word or not _is_text(word)), None)
    if wrong is not None:
        parser.error(f"{wrong[:80]}: is no text in UTF-8")
    _check_options(parser, words)
    options, rest = parser.parse_known_args(words)
    if getattr(options, "measured_as", ""):
        from sim.app.measured import conditions_as

        options.parser.set_defaults(**conditions_as(options.measured_as))  # what is typed beside it goes before
        options, rest = parser.parse_known_args(words)
    if hasattr(options, "operator"):
        late = [word for word in rest if "=" in word and not word.startswith("-")]
        file = [f"file={options.file}"] if options.file else []
        options.workload = " ".join([options.operator or "", *options.keys, *late, *file])
        rest = [word for word in rest if word not in late]
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint(rest[0], options.parser.option_words)}")
    if getattr(options, "force", False) and all(getattr(options, name, None) is None for name in FILES):
        named = (f"--{name.replace('_', '-')} FILE" for name in FILES if name in options)
        parser.error(f"--force goes with {' or '.join(named)}")
    return options


def _is_text(word: str) -> bool:
    """Whether a word's bytes were UTF-8; what was none stands in it as half a character."""
    return not any("\ud800" <= letter <= "\udfff" for letter in word)


def _check_options(parser: Parser, words: Sequence[str]) -> None:
    """InputError, with the nearest one, for an unknown command or option; before what is missing is said.

    What argparse takes for a value, a word with a space, is none.
    """
    known = parser
    for word in words:
        if word == "--":
            return
        option = word.partition("=")[0]
        if option.startswith("--") and " " not in word and option not in known.option_words:
            near = hint(option.lstrip("-"), [name.lstrip("-") for name in known.option_words], "; did you mean --{}?")
            known.error(f"unknown option {option[:40]}{near}")
        if known is parser and not word.startswith("-") and parser.commands:
            if word not in parser.commands:
                known.error(
                    f"unknown command {word[:40]}, one of {', '.join(parser.commands)}{hint(word, parser.commands)}"
                )
            known = parser.commands[word]


def add_machine(parser: Parser) -> None:
    """--arch and --set, of one machine."""
    parser.add_argument("--arch", required=True, metavar="A", help="preset or machine file (tilewave archs lists them)")
    add_overrides(parser)


def add_overrides(parser: Parser) -> None:
    """--set."""
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="P=V", help="override: --set l2.size='60 MiB'"
    )


def add_schedule(parser: Parser) -> None:
    """--schedule, one."""
    parser.add_argument(
        "--schedule", default="auto", metavar="S", help="auto, a kind such as wgmma, or a configuration"
    )


def add_conditions(parser: Parser) -> None:
    """Options of every run, also of a recorded one."""
    add: Add = parser.add_argument
    l2 = (
        "cold (default), warm, dirty: full of another kernel's stores, turns: of what calls on other operands left, or "
        "uploaded: of operands copied from the host"
    )
    add("--l2", default="cold", metavar="STATE", help=l2)
    add("--clock", default="isolated", metavar="CLOCK", help="isolated (default), sustained, or locked: '1.41 GHz'")
    add(
        "--data",
        default="normal",
        metavar="DATA",
        help="operands, for the energy: normal (default), uniform, zeros, half_zeros",
    )
    add("--exact", action="store_true", help="issue every instruction singly")
    add(
        "--without", nargs="+", action="extend", default=[], metavar="M",
        help="leave a mechanism out, as another program: tma, wgmma, tensor_memory, warp_specialization, pingpong, "
        "overlap, multicast, pairs, clc, exp_on_fma",
    )  # fmt: skip


def add_scope(parser: Parser) -> None:
    """--scope and --pdl."""
    add: Add = parser.add_argument
    add(
        "--scope",
        default="kernel",
        metavar="SCOPE",
        help="what time covers: kernel (default), event, stream, graph, host, array (TPUs)",
    )
    add(
        "--pdl", action="store_true",
        help="programmatic dependent launch: a kernel's start overlaps the end of the one before",
    )  # fmt: skip


def add_measured(parser: Parser) -> None:
    """--as."""
    words = (
        "as people measure it: serving-graph, call-graph, loop, do-bench, profiler or host-clock give --scope, --l2, "
        "--clock and how a graph is replayed; what is typed beside it goes before"
    )
    parser.add_argument("--as", dest="measured_as", default="", metavar="NAME", help=words)


def add_choice(parser: Parser) -> None:
    """--hold and --tune of studies: how the schedule of each point is chosen."""
    add: Add = parser.add_argument
    add(
        "--hold",
        action="store_true",
        help="one schedule for all points, the first one's: what the machine alone does",
    )
    add(
        "--tune", action=argparse.BooleanOptionalAction, default=True,
        help="simulate the candidates of each point and take the fastest (default); --no-tune: what auto takes",
    )  # fmt: skip


def add_measures(parser: Parser) -> None:
    """Options of runs whose time is wanted."""
    add_scope(parser)
    add: Add = parser.add_argument
    add("--tune", action="store_true", help="simulate all candidates and take the fastest")


def add_program(parser: Parser) -> None:
    """--program."""
    words = "run this program, a changed listing (TPUs); nothing in it is executed as Python"
    parser.add_argument("--program", default="", metavar="FILE", help=words)


def conditions(options: argparse.Namespace, *more: str) -> dict[str, Any]:
    """Options of a run, and `more`, under the names that `simulate` takes."""
    return {
        name: getattr(options, name)
        for name in ("set", "without", "exact", "l2", "scope", "clock", "data", "tune", "pdl", *more)
    }


def add_workers(parser: Parser) -> None:
    """--workers and --store."""
    parser.add_argument("--workers", type=positive, metavar="N", help="processes; default: all cores")
    parser.add_argument("--store", metavar="FILE", help="where results are kept; default: in the user's cache")


def add_running(parser: Parser) -> None:
    """--workers, --store, --executor and --scheduler: where a study's runs are made and kept."""
    add_workers(parser)
    add: Add = parser.add_argument
    add("--executor", default="local", choices=("local", "dask"), help="local processes (default), or a Dask cluster")
    add(
        "--scheduler", metavar="ADDRESS",
        help="of the Dask scheduler, such as tcp://10.0.0.1:8786; whoever can reach a scheduler can execute code on "
        "its workers and on this machine: use it in networks that you trust, or with TLS (tls://)",
    )  # fmt: skip


def add_output(parser: Parser) -> None:
    """--json, --plot and --force."""
    parser.add_argument("--json", action="store_true", help="JSON on stdout instead of text")
    parser.add_argument("--plot", metavar="FILE", help=f"draw to a file ({', '.join(PICTURES)})")
    parser.add_argument("--force", action="store_true", help="let files be overwritten")


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = whole_number(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text[:40]} must be a whole number of at least 1")
    return number


def share(text: str) -> float:
    """A share: `10 %` or `0.1`."""
    try:
        value = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]} must be a share between 0 and 1, such as 0.1 or '10 %'")
    return value


# ------------------------------------------------------------------------------------------------------ what comes out


def as_json(document: Any) -> str:
    """JSON as all commands print it."""
    return json.dumps(document, indent=2, allow_nan=False)


def show(found: Shown, json: bool) -> None:
    """Prints what a command found: JSON if asked for, else tables. Where its reader has gone (`| head`), the rest is
    dropped and the command goes on, since it may have files to write."""
    from sim.app.report.render import show

    try:
        if json:
            print(as_json(found.to_dict()))
        else:
            show(found.sections())
        sys.stdout.flush()
    except BrokenPipeError:
        say_no_more()


def say_all() -> None:
    """Writes what stdout still holds, if anybody is there to read it."""
    try:
        sys.stdout.flush()
    except OSError:
        say_no_more()


def say_no_more() -> None:
    """Sends what stdout still holds nowhere: its reader has gone (`| head`), or its disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def target(option: str, name: str | None, suffixes: Sequence[str], force: bool) -> Path | None:
    """Where a file goes, checked before anything runs. suffixes: of its name; any if there are none."""
    if name is None:
        return None
    path, place = Path(name), Path(os.path.realpath(name))
    if suffixes and path.suffix not in suffixes:
        raise InputError(f"{option} {name}: the name must end in {' or '.join(suffixes)}")
    if not place.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {place.parent if path.is_symlink() else path.parent}")
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise InputError(f"{option} {path.name[:40]}...: the name is longer than {_LONGEST_NAME} bytes")
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder; name a file")
    if (path.exists() or path.is_symlink()) and not force:
        raise InputError(f"{option} {path}: the file exists; --force overwrites it")
    return path


def folder(option: str, name: str | None) -> Path | None:
    """A folder that is there, checked before anything runs."""
    if name is not None and not Path(name).is_dir():
        raise InputError(f"{option} {name}: there is no such folder")
    return None if name is None else Path(name)


def picture(options: argparse.Namespace) -> Path | None:
    """Where --plot draws."""
    return target("--plot", options.plot, PICTURES, options.force)


@contextmanager
def written(option: str, path: Path) -> Iterator[Path]:
    """Gives the file to write to, which takes the place of `path` once it is whole.

    Turns a full disk or a forbidden folder into one line.
    """
    try:
        with replacing(path) as part:
            yield part
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror}") from None


def save(draw: Callable[[], Any], path: Path) -> None:
    """Writes the figure that `draw` makes, without a display."""
    import matplotlib

    matplotlib.use("Agg")
    figure = draw()
    with written("--plot", path) as part:
        figure.savefig(part, dpi=150)


@contextmanager
def counted(label: str) -> Iterator[Callable[[int, int], None]]:
    """Progress over a number of runs, with the time left."""
    from sim.app.cli.progress import Progress

    with Progress(label) as bar:

        def show(done: int, of: int) -> None:
            bar.label = f"{label}: {done} of {of} runs"
            bar(done / of)

        yield show
