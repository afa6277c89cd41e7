"""The command line: `tilewave run | compare | archs | ops | validate`; studies and traces have theirs in their folders.

Exit codes: 0 fine, 1 a failed check or a row on which the simulator broke, 2 bad input (one line on stderr), 130 after
Ctrl-C.
Everything heavy is imported by the command that needs it.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from sim.app.cli import arguments, machines
from sim.app.cli import study as study
from sim.app.cli import trace as trace
from sim.app.cli.arguments import Parser, as_json
from sim.app.cli.compiled import add_compiled, compiled_workload
from sim.app.cli.start import no_matrices, open_streams, uncollected

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.app.report.compare import Comparison
    from sim.app.report.report import Report
    from sim.app.study.validate import Validation
    from sim.app.trace.earlier import Earlier
    from sim.app.trace.timeline import Timeline

FINE, DIFFERENCE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
MOVIES = (".gif", ".html")


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    _hear_interrupts()
    open_streams()
    try:
        return _main(words)
    finally:
        arguments.say_all()


def _main(words: Sequence[str] | None) -> int:
    try:
        options = arguments.parse(_parser(), words)
        if "command" not in options:
            options.parser.print_help()
            return FINE
        code = int(options.command(options))
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"tilewave: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("tilewave: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        arguments.say_no_more()
        return FINE
    except OSError as error:
        arguments.say_no_more()
        where = f"{error.filename}: " if error.filename else ""
        print(f"tilewave: {where}{error.strerror or error}", file=sys.stderr)
        return BAD_INPUT


def _hear_interrupts() -> None:
    """Listens to SIGINT also where a shell has put the program into the background, which makes it deaf to that."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _parser() -> Parser:
    parser = Parser(
        prog="tilewave",
        description="Replays a workload, warp instruction by warp instruction, on a described machine, and says how "
        "many cycles it took and why.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)

    _add_run(commands)
    _add_compare(commands)
    _add_lists(commands)
    _add_validate(commands)
    study.add_commands(commands)
    trace.add_command(commands)
    machines.add_command(commands)
    return parser


def _add_run(commands: Any) -> None:
    """Adds the parser of `run`."""
    run = commands.add_parser("run", help="one operator on one machine", allow_abbrev=False)
    arguments.add_workload(run, needed=False)
    add_compiled(run)
    run.add_argument(
        "--torch",
        action="store_true",
        help="OP is FILE.py:FUNCTION, which returns a torch module and its arguments: exported on the meta device",
    )
    _add_run_options(run)
    run.set_defaults(command=_run)
    model = commands.add_parser(
        "model", help="all of a model, by its name, its config.json or its .onnx, on one machine", allow_abbrev=False
    )
    arguments.add_workload(model)
    _add_run_options(model)
    model.set_defaults(command=_model, autotune=False, torch=False)


def _add_run_options(run: Parser) -> None:
    arguments.add_machine(run)
    arguments.add_schedule(run)
    _add_conditions(run)
    arguments.add_measured(run)
    run.add_argument(
        "--beside", default="", metavar="LIBRARY",
        help="beside the fastest kernel simulate what a library takes, such as cublas (tilewave ops OP lists them)",
    )  # fmt: skip
    run.add_argument(
        "--show-array",
        nargs="?",
        const="array.gif",
        metavar="FILE",
        help="print what every cell of a systolic array holds, and animate it (.gif, .html; default: array.gif)",
    )
    arguments.add_program(run)
    run.add_argument(
        "--strict", action="store_true", help="refuse a model (onnx, --torch) with operators that have no kernel"
    )
    run.add_argument("--listing", action="store_true", help="print the program instead of running it")
    run.add_argument("--profile", action="store_true", help="print only the profile of a graph, by operator")
    run.add_argument(
        "--source", action="store_true", help="print only where in its source a compiled kernel's warps wait"
    )
    arguments.add_output(run)
    run.add_argument("--html", metavar="FILE", help="write the whole report as one HTML file")
    run.add_argument("--baseline", metavar="OLD.html", help="with --html: put an earlier page's run beside this one")
    run.add_argument(
        "--config", metavar="FILE", help="SCALE-Sim's configuration, as overrides ahead of --set; CALC: --scope array"
    )
    run.add_argument("--scalesim-reports", metavar="FOLDER", help="write SCALE-Sim's report files of the layers")


def _add_compare(commands: Any) -> None:
    """Adds the parser of `compare`."""
    compare = commands.add_parser("compare", help="one operator on several machines", allow_abbrev=False)
    arguments.add_workload(compare)
    compare.add_argument(
        "--arch", required=True, nargs="+", action="extend", metavar="A", help="presets or machine files"
    )
    arguments.add_overrides(compare)
    compare.add_argument(
        "--schedule", default=["auto"], nargs="+", action="extend", metavar="S", help="each is run on each machine"
    )
    _add_conditions(compare)
    arguments.add_output(compare)
    compare.set_defaults(command=_compare)


def _add_lists(commands: Any) -> None:
    """Adds the parsers of what lists machines, operators and opcodes."""
    archs = commands.add_parser("archs", help="list machines, or show one with its sources", allow_abbrev=False)
    archs.add_argument(
        "name", nargs="?", metavar="NAME", help="preset or machine file; or a word that several have, such as H100"
    )
    arguments.add_overrides(archs)
    archs.add_argument("--json", action="store_true", help="JSON instead of text")
    archs.add_argument(
        "--schema",
        action="store_true",
        help="JSON schema of machine files of NAME's family (default: gpu), for editors",
    )
    archs.set_defaults(command=_archs)

    ops = commands.add_parser("ops", help="list operators, or show one with its keys", allow_abbrev=False)
    ops.add_argument("name", nargs="?", metavar="NAME", help="operator, such as gemm; or FILE.py:FUNCTION")
    ops.add_argument("--json", action="store_true", help="JSON instead of text")
    ops.set_defaults(command=_ops)

    opcodes = commands.add_parser(
        "opcodes", help="opcodes of the tile language, and what they cost on a GPU", allow_abbrev=False
    )
    opcodes.add_argument("name", metavar="NAME", help="preset or machine file")
    arguments.add_overrides(opcodes)
    opcodes.add_argument("--json", action="store_true", help="JSON instead of text")
    opcodes.set_defaults(command=_opcodes)


def _add_validate(commands: Any) -> None:
    """Adds the parser of `validate`."""
    validate = commands.add_parser("validate", help="simulated against measured times", allow_abbrev=False)
    validate.add_argument(
        "trace", nargs="?", metavar="TRACE",
        help="a trace of torch.profiler with shapes (.json, .json.gz): its kernels beside those of --arch, one machine",
    )  # fmt: skip
    validate.add_argument(
        "--clock", metavar="CLOCK", help="of TRACE: isolated (default), sustained, or locked: '1.41 GHz'"
    )
    kernels = "of TRACE: best (default), the fastest that there is, or pytorch, what it would run as far as it is known"
    validate.add_argument("--kernels", metavar="WHICH", help=kernels)
    arguments.add_overrides(validate)
    validate.add_argument("--reference", metavar="FILE", help="CSV of measurements; default: the packaged rows")
    for name in ("arch", "op", "dtype", "source", "schedule"):
        validate.add_argument(
            f"--{name}",
            nargs="+",
            action="extend",
            default=[],
            metavar=name[0].upper(),
            help=f"only rows of this {name}",
        )
    validate.add_argument(
        "--split", "--half", nargs="+", default=[], metavar="SPLIT",
        help="only rows that figures may be calibrated on (fitted), or others (held, sealed); default: fitted and held",
    )  # fmt: skip
    validate.add_argument(
        "--measured-clock", action="store_true",
        help="rows of --reference that have core_mhz run at that clock, which leaves power out of their errors",
    )  # fmt: skip
    arguments.add_running(validate)
    arguments.add_output(validate)
    validate.set_defaults(command=_validate)


def _add_conditions(parser: Parser) -> None:
    arguments.add_conditions(parser)
    arguments.add_measures(parser)
    parser.add_argument("--check", action="store_true", help="replay the schedule with numbers and compare with NumPy")


class _Version(argparse.Action):
    """Prints the version; looked up only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **keywords: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **keywords)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Prints and exits."""
        from importlib import metadata

        print(f"tilewave {metadata.version('tilewave')}")
        parser.exit()


# ---------------------------------------------------------------------------------------------------- commands


def _model(options: argparse.Namespace) -> int:
    """`run` with all of a model, whose name or file stands in the operator's place."""
    from workloads.graphs.models import whole_model

    name, *keys = options.workload.split()
    of_file = " ".join([f"onnx file={name}", *keys])
    options.workload = of_file if name.endswith(".onnx") else whole_model(name, keys)
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    picture = arguments.picture(options)
    page = arguments.target("--html", options.html, (".html",), options.force)
    before = _earlier(options)
    movie = arguments.target("--show-array", options.show_array, MOVIES, options.force)
    reports = arguments.folder("--scalesim-reports", options.scalesim_reports)
    if options.config:
        _configure(options)
    workload = compiled_workload(options) or _model_workload(options)
    text = str(workload)
    if options.listing:
        return _listing(options)
    if options.autotune:
        return _autotune(options)
    with uncollected(), contextlib.nullcontext() if options.check else no_matrices():
        from sim.app.cli.progress import Progress
        from sim.app.families.family import runner_of
        from sim.app.report.report import Report
        from sim.app.run import listing_of, request_of, run, run_recorded
        from sim.app.study.candidates import Candidates
        from workloads.graphs import GraphOperator
        from workloads.ops import AllReduce, CopyH2D
        from workloads.written import ProgramFile

        how = {"schedule": options.schedule, "program": options.program, **_conditions(options)}
        if options.measured_as:
            from sim.app.measured import bench_as

            how |= {"measured_as": options.measured_as, "bench": bench_as(options.measured_as, options.scope)}
        asked = request_of(workload, options.arch, **how)
        if options.profile and not isinstance(asked.asked, GraphOperator | CopyH2D | AllReduce | ProgramFile):
            raise InputError(f"--profile: {options.operator} is one operator; a graph is llama or bert_layer")
        runner_of(asked.machine.family)  # imports what runs it
        if options.beside:
            from sim.app.beside import beside, check_library

            check_library(asked, options.beside)
    if movie:
        _show_array(options, movie)
    with Progress(text) as progress, contextlib.closing(Candidates(asked)) as known:
        record, timeline = run_recorded(asked, progress) if page else (run(asked, progress, known), None)
        if options.beside:
            record = beside(asked, record, options.beside, progress)
    report = Report(record)
    if options.profile and not record.operators:
        raise InputError(f"--profile: {record.workload} ran as one program or as layers, not as a graph of operators")
    if options.profile:
        _print_profile(report, options.json)
    elif options.source:
        _print_source(report, options.json)
    else:
        arguments.show(report, options.json)
    if picture:
        arguments.save(lambda: _drawing(report), picture)
    if page and timeline:
        _write_page(report, timeline, options, page, before, listing_of(asked, record.schedule))
    if reports:
        _write_reports(report, reports)
    return _outcome([report])


def _model_workload(options: argparse.Namespace) -> Any:
    """The workload as it was typed, or with `--torch` the function that makes a module; `--strict` of either."""
    if options.torch:
        from workloads.parse import parse
        from workloads.written import ProgramFile

        found = parse(options.workload)
        if not isinstance(found, ProgramFile) or found.compiled:
            raise InputError(f"--torch: {options.operator} is no function of a file, such as model.py:make")
        return replace(found, torch=True, strict=options.strict)
    if options.strict and options.workload.split()[:1] != ["onnx"]:
        raise InputError("--strict goes with onnx models and --torch; other workloads are always refused")
    return f"{options.workload} others=refuse" if options.strict else options.workload


def _configure(options: argparse.Namespace) -> None:
    """Takes figures and scope from SCALE-Sim's configuration, as if they had been typed."""
    from arch.load import load_arch
    from arch.scalesim import read_config

    config = read_config(options.config, load_arch(options.arch))
    options.set = [*config.overrides, *options.set]
    options.scope = config.scope


def _write_reports(report: Report, folder: Path) -> None:
    """Writes SCALE-Sim's report files."""
    from sim.app.families.tpu.scalesim import report_files

    for name, text in report_files(report).items():
        with arguments.written("--scalesim-reports", folder / name) as part:
            part.write_text(text, encoding="utf-8")


def _listing(options: argparse.Namespace) -> int:
    """Prints the program; InputError where something is asked for that only a run has."""
    from sim.app.run import program_listing

    other = ("json", "plot", "html", "show_array", "profile", "source", "check", "program")
    asked = next((name for name in other if getattr(options, name)), None)
    if asked:
        raise InputError(f"--listing prints the program and runs nothing; leave out --{asked.replace('_', '-')}")
    how = {name: getattr(options, name) for name in ("schedule", "set", "without")}
    print(program_listing(compiled_workload(options) or _model_workload(options), options.arch, **how), end="")
    return FINE


def _autotune(options: argparse.Namespace) -> int:
    """Ranks the configurations of a Triton kernel; InputError where something is asked for that one run has."""
    from sim.app.autotune import autotune
    from sim.app.cli.progress import Progress
    from workloads.triton_kernels import TritonLaunch

    other = (
        "plot",
        "html",
        "show_array",
        "profile",
        "source",
        "check",
        "program",
        "num_warps",
        "num_stages",
        "num_ctas",
    )
    asked = next((name for name in other if getattr(options, name)), None)
    if asked:
        raise InputError(f"--autotune ranks the list's configurations; leave out --{asked.replace('_', '-')}")
    kernel = compiled_workload(options)
    assert isinstance(kernel, TritonLaunch)
    how = {"set": options.set, **_conditions(options)}
    with Progress(str(kernel)) as progress:
        found = autotune(kernel, options.arch, progress=progress, **how)
    arguments.show(found, options.json)
    return FINE


def _drawing(report: Report) -> Figure:
    """Roofline and stalls (of a graph: its profile), and below them what only the machine's family has."""
    from matplotlib import pyplot

    own = report.record.machine.view.draw
    figure = pyplot.figure(figsize=(13, 10.5 if own else 4.5), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1, 1.3)) if own else [figure]
    left, right = parts[0].subplots(1, 2)
    report.plot_roofline(left)
    record = report.record
    (report.plot_layers if record.layers else report.plot_profile if record.operators else report.plot_stalls)(right)
    if own:
        own(report, parts[1])
    return figure


def _earlier(options: argparse.Namespace) -> Earlier | None:
    """The page of an earlier run; InputError before anything runs where it is none."""
    if options.baseline is None:
        return None
    if not options.html:
        raise InputError("--baseline goes with --html FILE")
    from sim.app.trace.earlier import earlier

    return earlier(Path(options.baseline))


def _write_page(
    report: Report,
    timeline: Callable[[], Timeline],
    options: argparse.Namespace,
    path: Path,
    before: Earlier | None,
    listing: str,
) -> None:
    """Writes the report as one HTML file, with a timeline of what was run, and of an earlier run beside it."""
    from arch.load import load_arch
    from sim.app.study.difference import between
    from sim.app.trace.page import page

    compared = between((before.name, "this run"), (before.report, report.to_dict())).sections() if before else ()
    content = page(report, load_arch(options.arch, options.set), timeline, before, compared, listing)
    with arguments.written("--html", path) as part:
        part.write_text(content, encoding="utf-8")


def _print_profile(report: Report, json: bool) -> None:
    from sim.app.report.render import show
    from sim.app.report.sections import profile_section

    if not report.record.operators:
        raise InputError(f"--profile: {report.record.workload} ran as one program on {report.record.machine.name}")
    if json:
        print(as_json(report.to_dict()["profile"]))
    else:
        show([profile_section(report.record)])


def _print_source(report: Report, json: bool) -> None:
    from sim.app.report.render import show

    found = report.to_dict().get(report.record.machine.family, {}).get("source")
    section = report.record.machine.view.source_section
    if not found or section is None:
        raise InputError(
            f"--source: {report.record.workload} is no compiled kernel whose code names lines of its source"
        )
    if json:
        print(as_json(found))
    else:
        show([section(report)])


def _show_array(options: argparse.Namespace, path: Path) -> None:
    """Prints the cells cycle by cycle and writes the animation; with --json only the latter."""
    import matplotlib

    from sim.app.run import show_array

    array = show_array(options.workload, options.arch, set=options.set)
    matplotlib.use("Agg")
    from sim.app.report.animation import animate

    with arguments.written("--show-array", path) as part:
        animate(array.title, array.frames, part)
    if not options.json:
        print(f"{array}\nanimated in {path}\n")


def _compare(options: argparse.Namespace) -> int:
    picture = arguments.picture(options)
    from sim.app.cli.progress import Progress
    from sim.app.run import compare

    text = options.workload
    with Progress(text) as progress:
        comparison = compare(text, options.arch, options.schedule, progress=progress, **_conditions(options))
    reports = comparison.reports
    if not reports:
        raise InputError("; ".join(dict.fromkeys(row["reason"] for row in comparison.to_dict()["rows"])))
    arguments.show(comparison, options.json)
    if picture:
        arguments.save(lambda: _roofline(comparison), picture)
    return _outcome(reports) if len(reports) == len(comparison.rows) else DIFFERENCE


def _roofline(comparison: Comparison) -> Figure:
    """The machines of a comparison on one roofline."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    comparison.plot_roofline(axes)
    return figure


def _several(name: str | None) -> bool:
    """Whether a name means machines by what they are called (`H100`, `hopper`), not one of them."""
    from arch import list_archs
    from sim.app.machines import Machines

    if not name or "/" in name or name.endswith(".yaml") or name in list_archs():
        return False
    return bool(Machines(name).specs)


def _archs(options: argparse.Namespace) -> int:
    from arch import describe, json_schema, load_arch
    from sim.app.machines import Machines
    from sim.app.report.render import show
    from sim.app.report.sections import Section

    if options.schema:
        print(as_json(json_schema(load_arch(options.name, options.set).family if options.name else "gpu")))
        return FINE
    several = _several(options.name)
    if options.name and not several:
        spec = load_arch(options.name, options.set)
        rows = describe(spec)
        if options.json:
            print(
                as_json({"name": spec.name, "figures": {r.path: {"value": r.value, "source": r.source} for r in rows}})
            )
            return FINE
        show([Section(f"{spec.name}: {spec.title}", tuple(map(tuple, rows)))])
        return FINE
    if options.set:
        raise InputError("archs: --set needs a NAME, such as tilewave archs h100-sxm --set sm.count=114")
    found = Machines(options.name if several else "")
    if options.json:
        print(as_json(found.to_dict()))
    else:
        show(found.sections())
    return FINE


def _ops(options: argparse.Namespace) -> int:
    from sim.app.operators import Operators, described

    arguments.show(described(options.name) if options.name else Operators(), options.json)
    return FINE


def _opcodes(options: argparse.Namespace) -> int:
    from sim.app.opcodes import opcodes, sections
    from sim.app.report.render import show

    found = opcodes(options.name, tuple(options.set))
    if options.json:
        print(as_json(found))
    else:
        show(sections(found))
    return FINE


def _validate(options: argparse.Namespace) -> int:
    if options.trace:
        return _validate_trace(options)
    if given := next((name for name in ("clock", "kernels", "set") if getattr(options, name)), None):
        raise InputError(f"--{given} goes with a TRACE; rows say how they were measured")
    picture = arguments.picture(options)
    from sim.app.study.store import default_store, opened
    from sim.app.study.validate import select, validate
    from workloads.silicon import packaged_rows, read_rows

    filters = {name: getattr(options, name) for name in ("arch", "op", "dtype", "source", "schedule", "split")}
    if options.measured_clock and not options.reference:
        raise InputError("--measured-clock: needs --reference with a file that has the column core_mhz")
    found = (
        read_rows(options.reference, measured_clock=options.measured_clock) if options.reference else packaged_rows()
    )
    if not (options.reference or options.split):
        filters["split"] = ["fitted", "held"]  # sealed rows are for scripts/accuracy
    rows = select(found, **filters)
    with (
        opened(Path(options.store) if options.store else default_store()) as store,
        arguments.counted("validate") as progress,
    ):
        validation = validate(
            rows, store=store, workers=options.workers, executor=options.executor, scheduler=options.scheduler,
            progress=progress,
        )  # fmt: skip
    arguments.show(validation, options.json)
    if picture:
        arguments.save(lambda: _scatter(validation), picture)
    return DIFFERENCE if validation.failed else FINE


def _validate_trace(options: argparse.Namespace) -> int:
    """A profiler's trace beside one machine."""
    rows = ("reference", "op", "dtype", "source", "schedule", "split", "measured_clock", "plot", "workers", "store")
    if given := next((name for name in rows if getattr(options, name)), None):
        raise InputError(f"--{given.replace('_', '-')} goes with rows of measurements; {options.trace} is a trace")
    if len(options.arch) != 1:
        raise InputError(f"validate {options.trace}: needs one machine, such as --arch h100-sxm")
    from sim.app.cli.progress import Progress
    from sim.app.study.traces import compare_trace

    with Progress(options.trace) as progress:
        found = compare_trace(
            Path(options.trace), options.arch[0], options.set, options.clock or "isolated",
            options.kernels or "best", progress=progress,
        )  # fmt: skip
    arguments.show(found, options.json)
    return FINE


def _scatter(validation: Validation) -> Figure:
    """Simulated over measured times."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 7), layout="constrained")
    validation.plot(axes)
    return figure


# ---------------------------------------------------------------------------------------------------- what they share


def _conditions(options: argparse.Namespace) -> dict[str, Any]:
    """Options that `simulate` and `compare` take under the same names."""
    return arguments.conditions(options, "check")


def _outcome(reports: Sequence[Report]) -> int:
    """1 where a check failed."""
    return DIFFERENCE if any(report.record.check and not report.record.check.passed for report in reports) else FINE
