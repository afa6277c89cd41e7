"""The command line: `tilewave run | compare | archs | validate`.

Exit codes: 0 fine, 1 a failed check or a row on which the simulator broke, 2 bad input (one line on stderr), 130 after
Ctrl-C.
Everything heavy is imported by the command that needs it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from arch.errors import InputError
from sim.study import cli as study
from sim.trace import cli as trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.report.report import Report

FINE, DIFFERENCE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
PICTURES = (".png", ".svg", ".pdf")
MOVIES = (".gif", ".html")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all others."""

    def error(self, message: str) -> NoReturn:
        """Raises InputError with argparse's message."""
        raise InputError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
        return int(options.command(options))
    except InputError as error:
        print(f"tilewave: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("tilewave: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has gone (`| head`): nothing is left to say, not even when Python flushes at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE


def _parser() -> Parser:
    parser = Parser(
        prog="tilewave",
        description="Replays a workload, warp instruction by warp instruction, on a described machine, and says how "
        "many cycles it took and why.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    run = commands.add_parser("run", help="one operator on one machine", allow_abbrev=False)
    _add_workload(run)
    run.add_argument("--arch", required=True, metavar="A", help="preset or machine file (tilewave archs lists presets)")
    run.add_argument("--schedule", default="auto", metavar="S", help="auto, a kind such as wgmma, or a configuration")
    _add_conditions(run)
    run.add_argument(
        "--show-array",
        nargs="?",
        const="",
        metavar="FILE",
        help="print what every cell of a systolic array holds, and animate it (.gif, .html; default: array.gif)",
    )
    run.add_argument("--program", default="", metavar="FILE", help="run this program, a changed listing (TPUs)")
    run.add_argument("--listing", action="store_true", help="print the program instead of running it")
    run.add_argument("--profile", action="store_true", help="print only the profile of a graph, by operator")
    _add_output(run)
    run.add_argument("--html", metavar="FILE", help="write the whole report as one HTML file")
    run.set_defaults(command=_run)

    compare = commands.add_parser("compare", help="one operator on several machines", allow_abbrev=False)
    _add_workload(compare)
    compare.add_argument("--arch", required=True, nargs="+", metavar="A", help="presets or machine files")
    compare.add_argument("--schedule", default=["auto"], nargs="+", metavar="S", help="each is run on each machine")
    _add_conditions(compare)
    _add_output(compare)
    compare.set_defaults(command=_compare)

    archs = commands.add_parser("archs", help="list machines, or show one with its sources", allow_abbrev=False)
    archs.add_argument("name", nargs="?", metavar="NAME", help="preset or machine file")
    archs.add_argument("--set", nargs="+", action="extend", default=[], metavar="P=V", help="overrides of the machine")
    archs.add_argument("--json", action="store_true", help="JSON instead of text")
    archs.add_argument(
        "--schema",
        action="store_true",
        help="JSON schema of machine files of NAME's family (default: gpu), for editors",
    )
    archs.set_defaults(command=_archs)

    validate = commands.add_parser("validate", help="simulated against measured times", allow_abbrev=False)
    validate.add_argument("--reference", metavar="FILE", help="CSV of measurements; default: the packaged rows")
    for name in ("arch", "op", "dtype", "source", "schedule"):
        validate.add_argument(f"--{name}", nargs="+", default=[], metavar=name[0].upper(), help="only these rows")
    validate.add_argument("--workers", type=_positive, metavar="N", help="processes; default: all cores")
    validate.add_argument("--store", metavar="FILE", help="where results are kept; default: in the user's cache")
    _add_output(validate)
    validate.set_defaults(command=_validate)
    study.add_commands(commands)
    trace.add_command(commands)
    return parser


def _add_workload(parser: Parser) -> None:
    parser.add_argument("workload", nargs="+", metavar="OP k=v", help="such as: gemm m=4096 n=4096 k=4096 dtype=bf16")


def _add_conditions(parser: Parser) -> None:
    add = parser.add_argument
    add("--set", nargs="+", action="extend", default=[], metavar="P=V", help="override: --set l2.size='60 MiB'")
    add("--check", action="store_true", help="replay the schedule with numbers and compare with NumPy")
    add("--exact", action="store_true", help="issue every instruction singly")
    add("--l2", default="cold", metavar="STATE", help="cold (default), warm, or dirty: full of another kernel's stores")
    add(
        "--scope", default="kernel", metavar="SCOPE", help="what the time covers: kernel (default), event, stream, host"
    )
    add("--clock", default="isolated", metavar="CLOCK", help="isolated (default), sustained, or locked: '1.41 GHz'")
    add(
        "--data",
        default="normal",
        metavar="DATA",
        help="operands for the power model: normal (default), uniform, zeros",
    )
    add(
        "--without", nargs="+", action="extend", default=[], metavar="M",
        help="leave a mechanism out, as another program: tma, wgmma, warp_specialization, pingpong, overlap, multicast",
    )  # fmt: skip
    add("--tune", action="store_true", help="simulate the best few candidates and take the fastest")


def _add_output(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON on stdout instead of text")
    parser.add_argument("--plot", metavar="FILE", help=f"draw to a file ({', '.join(PICTURES)})")
    parser.add_argument("--force", action="store_true", help="let files be overwritten")


class _Version(argparse.Action):
    """Prints the version; looked up only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **keywords: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **keywords)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Prints and exits."""
        from importlib import metadata

        print(f"tilewave {metadata.version('tilewave')}")
        parser.exit()


def _positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least 1")
    return int(text)


# ---------------------------------------------------------------------------------------------------- commands


def _run(options: argparse.Namespace) -> int:
    picture = _picture(options)
    page = study.target("--html", options.html, (".html",), options.force)
    from sim.api import program_listing, simulate
    from sim.progress import Progress

    text = " ".join(options.workload)
    if options.listing:
        sys.stdout.write(
            program_listing(text, options.arch, schedule=options.schedule, set=options.set, without=options.without)
        )
        return FINE
    if options.show_array is not None:
        _show_array(options, text)
    with Progress(text) as progress:
        report = simulate(
            text, options.arch, schedule=options.schedule, program=options.program, progress=progress,
            **_conditions(options),
        )  # fmt: skip
    if options.profile:
        _print_profile(report, options.json)
    else:
        print(_json(report.to_dict()) if options.json else report)
    if picture:
        _save(_drawing(report), picture)
    if page:
        _write_page(report, text, options, page)
    return _outcome([report.to_dict()])


def _drawing(report: Report) -> Figure:
    """Roofline and stalls (of a graph: its profile), and below them what only the machine's family has."""
    from sim.report.families import family

    own = getattr(family(report.record.machine.family), "draw", None)
    figure: Figure = _pyplot().figure(figsize=(13, 10.5 if own else 4.5), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1, 1.3)) if own else [figure]
    left, right = parts[0].subplots(1, 2)
    report.plot_roofline(left)
    (report.plot_profile if report.record.operators else report.plot_stalls)(right)
    if own:
        own(report, parts[1])
    return figure


def _write_page(report: Report, text: str, options: argparse.Namespace, path: Path) -> None:
    """Writes the report as one HTML file, with a timeline of what was run."""
    from arch.load import load_arch
    from sim.trace import trace
    from sim.trace.page import page
    from sim.trace.window import Wanted

    machine = load_arch(options.arch, options.set)
    run = report.record
    asked = {name: getattr(options, name) for name in ("l2", "clock", "data", "exact", "program")}
    schedule = options.schedule if run.operators else run.schedule
    # Of a graph, the inside of its longest kernel.
    inside = (
        [number for number, kernel in enumerate(run.kernels) if getattr(kernel.own, "occupancy", None)]
        if run.operators
        else []
    )
    wanted = Wanted(kernel=max(inside, key=lambda number: run.kernels[number].cycles)) if inside else None
    content = page(report, machine, lambda: trace(text, machine, wanted, schedule=schedule, **asked))
    with study.written("--html", path):
        path.write_text(content, encoding="utf-8")


def _print_profile(report: Report, as_json: bool) -> None:
    from sim.report.render import as_text
    from sim.report.sections import profile_section

    if not report.record.operators:
        raise InputError(f"--profile: {report.record.workload} is one operator; graphs are bert_layer and llama")
    print(_json(report.to_dict()["profile"]) if as_json else as_text([profile_section(report.record)]))


def _show_array(options: argparse.Namespace, text: str) -> None:
    """Prints the cells cycle by cycle and writes the animation; with --json only the latter."""
    from sim.api import show_array

    path = Path(options.show_array or "array.gif")
    if path.suffix not in MOVIES:
        raise InputError(f"--show-array {path}: the name must end in one of {', '.join(MOVIES)}")
    if not path.parent.is_dir():
        raise InputError(f"--show-array {path}: there is no folder {path.parent}")
    if path.exists() and not options.force:
        raise InputError(f"--show-array {path}: the file exists; --force overwrites it")
    array = show_array(text, options.arch, set=options.set)
    _pyplot()
    from sim.report.animation import animate

    try:
        animate(array.title, array.frames, path)
    except OSError as error:
        raise InputError(f"--show-array {path}: cannot be written: {error.strerror}") from None
    if not options.json:
        print(f"{array}\nanimated in {path}\n")


def _compare(options: argparse.Namespace) -> int:
    picture = _picture(options)
    from sim.api import compare
    from sim.progress import Progress

    text = " ".join(options.workload)
    with Progress(text) as progress:
        comparison = compare(text, options.arch, options.schedule, progress=progress, **_conditions(options))
    print(_json(comparison.to_dict()) if options.json else comparison)
    reports = comparison.reports
    if picture and reports:
        figure, axes = _pyplot().subplots(figsize=(7, 4.5), layout="constrained")
        comparison.plot_roofline(axes)
        _save(figure, picture)
    return _outcome([report.to_dict() for report in reports]) if reports else BAD_INPUT


def _archs(options: argparse.Namespace) -> int:
    from arch import describe, json_schema, list_archs, load_arch

    if options.schema:
        print(_json(json_schema(load_arch(options.name, options.set).family if options.name else "gpu")))
        return FINE
    if options.name:
        spec = load_arch(options.name, options.set)
        rows = describe(spec)
        if options.json:
            print(_json({"name": spec.name, "figures": {r.path: {"value": r.value, "source": r.source} for r in rows}}))
            return FINE
        widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
        print(f"{spec.name}: {spec.title}")
        for row in rows:
            print(f"  {row.path:<{widths[0]}}  {row.value:<{widths[1]}}  {row.source}".rstrip())
        return FINE
    if options.set:
        raise InputError("archs: --set needs a NAME, such as tilewave archs h100-sxm --set sm.count=114")
    machines = {name: load_arch(name).summary for name in list_archs()}
    if options.json:
        print(_json(machines))
    else:
        width = max(map(len, machines))
        print("\n".join(f"{name:<{width}}  {text}" for name, text in machines.items()))
    return FINE


def _validate(options: argparse.Namespace) -> int:
    picture = _picture(options)
    from sim.api import simulate_row
    from sim.progress import Progress
    from sim.runners.gpu import compile_kernels
    from sim.validate import default_store, select, validate
    from workloads.silicon import SILICON_CSV, read_rows

    filters = {name: getattr(options, name) for name in ("arch", "op", "dtype", "source", "schedule")}
    rows = select(read_rows(options.reference or SILICON_CSV), **filters)
    store = Path(options.store) if options.store else default_store()
    compile_kernels()  # once here, not once in every process
    with Progress(f"{len(rows)} rows") as progress:
        validation = validate(
            rows, simulate_row, store=store, workers=options.workers, progress=lambda done, of: progress(done / of)
        )
    print(_json(validation.to_dict()) if options.json else validation)
    if picture:
        figure, axes = _pyplot().subplots(figsize=(7, 7), layout="constrained")
        validation.plot(axes)
        _save(figure, picture)
    return DIFFERENCE if validation.failed else FINE


# ---------------------------------------------------------------------------------------------------- what they share


def _conditions(options: argparse.Namespace) -> dict[str, Any]:
    """Options that `simulate` and `compare` take under the same names."""
    names = ("set", "check", "exact", "l2", "scope", "clock", "data", "tune", "without")
    return {name: getattr(options, name) for name in names}


def _outcome(reports: Sequence[dict[str, Any]]) -> int:
    """1 where a check failed."""
    return DIFFERENCE if any(not report.get("check", {"passed": True})["passed"] for report in reports) else FINE


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, allow_nan=False)


def _picture(options: argparse.Namespace) -> Path | None:
    """Where the picture goes, checked before anything runs."""
    if options.plot is None:
        if options.force and all(getattr(options, name, None) is None for name in ("html", "show_array")):
            raise InputError("--force goes with --plot FILE, --html FILE or --show-array FILE")
        return None
    path = Path(options.plot)
    if path.suffix not in PICTURES:
        raise InputError(f"--plot {path}: the name must end in one of {', '.join(PICTURES)}")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder {path.parent}")
    if path.exists() and not options.force:
        raise InputError(f"--plot {path}: the file exists; --force overwrites it")
    return path


def _pyplot() -> Any:
    """matplotlib's pyplot, drawing to files only."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"--plot {path}: cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
