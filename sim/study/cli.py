"""Subcommands of studies: `tilewave sweep`. What they need is imported when they run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.study.sweep import Sweep

PICTURES = (".png", ".svg", ".pdf")
TABLES = (".csv", ".parquet")

Add = Callable[..., Any]


def add_commands(commands: Any) -> None:
    """Adds the parsers of studies to the command line's."""
    sweep = commands.add_parser(
        "sweep", help="one workload over ranges of figures, shapes, schedules", allow_abbrev=False
    )
    _add_base(sweep, vary_help="KEY=1,2,4 or KEY=A:B:STEP, A:B:*F, A:B:linN, A:B:logN; keys of one --vary go together, "
              "several --vary are crossed")  # fmt: skip
    _add_running(sweep)
    sweep.add_argument("--csv", "--table", dest="table", metavar="FILE", help="write one row a run (.csv, .parquet)")
    sweep.add_argument("--melt", action="store_true", help="one row a run and metric in --csv")
    sweep.add_argument("--metric", default="time_us", metavar="M", help="what --plot shows; default time_us")
    sweep.add_argument("--kind", default="auto", metavar="K", help="line or heat; default: what fits")
    sweep.add_argument(
        "--pareto", nargs=2, metavar=("X", "Y"), help="list, and with --plot draw, the runs best in both"
    )
    _add_output(sweep)
    sweep.set_defaults(command=_sweep)

    found = commands.add_parser("sensitivity", help="which hardware figures move this workload", allow_abbrev=False)
    _add_workload(found)
    found.add_argument("--arch", required=True, metavar="A", help="preset or machine file")
    _add_conditions(found)
    found.add_argument(
        "--step", type=_share, default=0.1, metavar="S", help="relative change of each figure; default 10 %%"
    )
    found.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="only these figures, such as 'dram.*'")
    _add_running(found)
    _add_output(found)
    found.set_defaults(command=_sensitivity)

    best = commands.add_parser("optimize", help="search ranges for the best run (Optuna)", allow_abbrev=False)
    _add_base(best, vary_help="KEY=VALUES as in sweep: one parameter of the search")
    best.add_argument("--goal", nargs="+", default=["time_us"], metavar="M", help="one or two metrics; default time_us")
    best.add_argument(
        "--define",
        nargs="+",
        action="extend",
        default=[],
        metavar="N=E",
        help="name an expression, such as an area: 'area=sm.count * 4.2 + l2.size_bytes / 2**20'",
    )
    best.add_argument(
        "--subject-to", nargs="+", action="extend", default=[], metavar="C", help="constraint, such as 'area <= 800'"
    )
    best.add_argument("--trials", type=_positive, default=40, metavar="N", help="runs to try; default 40")
    best.add_argument("--seed", type=int, default=0, metavar="S", help="of the search; default 0")
    _add_running(best)
    _add_output(best)
    best.set_defaults(command=_optimize)

    check = commands.add_parser("check", help="cases of tilewave.toml against recorded cycles", allow_abbrev=False)
    check.add_argument("names", nargs="*", metavar="NAME", help="only these cases (patterns); default: all")
    check.add_argument("--config", default="tilewave.toml", metavar="FILE", help="default: tilewave.toml")
    check.add_argument("--update", action="store_true", help="record what is there now in cycles.lock beside it")
    check.add_argument(
        "--tolerance", type=_share, metavar="T", help="accepted change, such as 1%%; default: the file's, or 0"
    )
    check.add_argument("--format", default="text", metavar="F", help="text (default), json, junit, github")
    check.add_argument("--json", dest="format", action="store_const", const="json", help="same as --format json")
    check.add_argument("--out", metavar="FILE", help="write to a file instead of stdout")
    check.add_argument("--workers", type=_positive, metavar="N", help="processes; default: all cores")
    check.add_argument("--store", metavar="FILE", help="where results are kept; default: in the user's cache")
    check.set_defaults(command=_check)

    diff = commands.add_parser("diff", help="explain the difference between two runs", allow_abbrev=False)
    diff.add_argument("reports", nargs=2, metavar="A.json B.json", help="reports of tilewave run --json")
    diff.add_argument("--tolerance", type=_share, default=0.0, metavar="T", help="accepted change; default 0")
    diff.add_argument("--json", action="store_true", help="JSON instead of text")
    diff.set_defaults(command=_diff)


def _add_base(parser: Any, *, vary_help: str) -> None:
    add: Add = parser.add_argument
    _add_workload(parser)
    add("--arch", nargs="+", default=[], metavar="A", help="presets or machine files")
    add("--vary", nargs="+", action="append", default=[], metavar="KEY=VALUES", help=vary_help)
    _add_conditions(parser)


def _add_workload(parser: Any) -> None:
    parser.add_argument("workload", nargs="+", metavar="OP k=v", help="such as: gemm m=4096 n=4096 k=4096 dtype=bf16")


def _add_conditions(parser: Any) -> None:
    add: Add = parser.add_argument
    add("--schedule", default="auto", metavar="S", help="auto, a kind such as wgmma, or a configuration")
    add("--set", nargs="+", action="extend", default=[], metavar="P=V", help="override: --set l2.size='60 MiB'")
    add("--l2", default="cold", metavar="STATE", help="cold (default), warm or dirty")
    add("--scope", default="kernel", metavar="SCOPE", help="kernel (default), event, stream, host")
    add("--clock", default="isolated", metavar="CLOCK", help="isolated (default), sustained, or locked: '1.41 GHz'")
    add("--data", default="normal", metavar="DATA", help="normal (default), uniform, zeros")
    add("--tune", action="store_true", help="simulate the best few candidates and take the fastest")
    add("--exact", action="store_true", help="issue every instruction singly")


def _add_running(parser: Any) -> None:
    add: Add = parser.add_argument
    add("--workers", type=_positive, metavar="N", help="processes; default: all cores")
    add("--executor", default="local", choices=("local", "dask"), help="local processes (default), or a Dask cluster")
    add("--scheduler", metavar="ADDRESS", help="of the Dask scheduler, such as tcp://10.0.0.1:8786")
    add("--store", metavar="FILE", help="where results are kept; default: in the user's cache")


def _add_output(parser: Any) -> None:
    parser.add_argument("--json", action="store_true", help="JSON on stdout instead of text")
    parser.add_argument("--plot", metavar="FILE", help=f"draw to a file ({', '.join(PICTURES)})")
    parser.add_argument("--force", action="store_true", help="let files be overwritten")


def _positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least 1")
    return int(text)


def _share(text: str) -> float:
    """A share: `10 %` or `0.1`."""
    try:
        return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} must be a share such as 0.1 or '10 %'") from None


# ---------------------------------------------------------------------------------------------------- commands


def _sweep(options: argparse.Namespace) -> int:
    table = target("--csv", options.table, TABLES, options.force)
    picture = target("--plot", options.plot, PICTURES, options.force)
    if options.melt and table is None:
        raise InputError("--melt goes with --csv FILE")
    from sim.study.sweep import KINDS, known_metric, sweep

    for metric in (options.metric, *(options.pareto or ())):
        known_metric(metric)
    if options.kind not in KINDS:
        raise InputError(f"--kind {options.kind}: must be one of {', '.join(KINDS)}")
    text = " ".join(options.workload)
    with counted(text) as progress:
        found = sweep(text, options.arch, options.vary, progress=progress, **_running(options), **conditions(options))
    if options.json:
        print(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        print(found)
        if options.pareto:
            print(f"\nBest in {' and '.join(options.pareto)}")
            for row in found.pareto(*options.pareto):
                shown = ", ".join(f"{key}={value}" for key, value in row.point.values.items())
                print("  " + "  ".join([*(f"{name} {row.metric(name):.6g}" for name in options.pareto), shown]))
        if found.kept:
            print(f"\n{found.kept} results were in the store")
    if table:
        with written("--csv", table):
            found.write(table, melt=options.melt)
    if picture:
        save(lambda: _sweep_figure(found, options), picture)
    return 1 if found.failed else 0


def _sweep_figure(found: Sweep, options: argparse.Namespace) -> Any:
    if options.pareto:
        return found.plot_pareto(*options.pareto)
    return found.plot(options.metric, kind=options.kind)


def _sensitivity(options: argparse.Namespace) -> int:
    picture = target("--plot", options.plot, PICTURES, options.force)
    from sim.study.sensitivity import sensitivity

    text = " ".join(options.workload)
    with counted(text) as progress:
        found = sensitivity(
            text,
            options.arch,
            step=options.step,
            only=options.only,
            progress=progress,
            **_running(options),
            **conditions(options),
        )
    print(json.dumps(found.to_dict(), indent=2, allow_nan=False) if options.json else found)
    if picture:
        save(found.plot, picture)
    return 0


def _optimize(options: argparse.Namespace) -> int:
    picture = target("--plot", options.plot, PICTURES, options.force)
    if len(options.arch) != 1:
        raise InputError("--arch A: a search has one machine to start from")
    from sim.study.optimize import optimize

    text = " ".join(options.workload)
    with counted(text) as progress:
        found = optimize(
            text,
            options.arch[0],
            options.vary,
            goals=options.goal,
            define=options.define,
            subject_to=options.subject_to,
            trials=options.trials,
            seed=options.seed,
            progress=progress,
            **_running(options),
            **conditions(options),
        )
    print(json.dumps(found.to_dict(), indent=2, allow_nan=False) if options.json else found)
    if picture:
        save(found.plot, picture)
    return 0 if found.best else 1


def _check(options: argparse.Namespace) -> int:
    import difflib

    from sim.study.check import check
    from sim.study.check_formats import FORMATS
    from sim.study.store import ResultStore, default_store

    if options.format not in FORMATS:
        near = difflib.get_close_matches(options.format, list(FORMATS), n=1, cutoff=0.0)[0]
        raise InputError(f"--format {options.format}: must be one of {', '.join(FORMATS)}; did you mean {near}?")
    with (
        ResultStore(Path(options.store) if options.store else default_store()) as store,
        counted(options.config) as progress,
    ):
        found = check(
            Path(options.config),
            names=options.names,
            update=options.update,
            tolerance=options.tolerance,
            store=store,
            workers=options.workers,
            progress=progress,
        )
    text = FORMATS[options.format](found)
    if options.out:
        path = Path(options.out)
        with written("--out", path):
            path.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    return found.exit_code


def _diff(options: argparse.Namespace) -> int:
    from sim.study.difference import difference

    old, new = (Path(name) for name in options.reports)
    found = difference(old, new, options.tolerance)
    print(json.dumps(found.to_dict(), indent=2, allow_nan=False) if options.json else found)
    return 1 if found.differs else 0


# ---------------------------------------------------------------------------------------------------- what they share


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """Options of a run under the names that `simulate` takes."""
    names = ("set", "schedule", "l2", "scope", "clock", "data", "tune", "exact")
    return {name: getattr(options, name) for name in names}


def _running(options: argparse.Namespace) -> dict[str, Any]:
    store = Path(options.store) if options.store else None
    return {"store": store, "workers": options.workers, "executor": options.executor, "scheduler": options.scheduler}


@contextmanager
def counted(label: str) -> Iterator[Callable[[int, int], None]]:
    """Progress over a number of runs, with the time left."""
    from sim.progress import Progress

    with Progress(label) as bar:

        def show(done: int, of: int) -> None:
            bar.label = f"{label}: {done} of {of} runs"
            bar(done / of)

        yield show


def target(option: str, name: str | None, suffixes: tuple[str, ...], force: bool) -> Path | None:
    """Where a file goes, checked before anything runs."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix not in suffixes:
        raise InputError(f"{option} {path}: the name must end in one of {', '.join(suffixes)}")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}")
    if path.exists() and not force:
        raise InputError(f"{option} {path}: the file exists; --force overwrites it")
    return path


@contextmanager
def written(option: str, path: Path) -> Iterator[None]:
    """Turns a full disk or a forbidden folder into one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror}") from None


def save(draw: Callable[[], Any], path: Path) -> None:
    """Draws to a file, without a display."""
    import matplotlib

    matplotlib.use("Agg")
    figure: Figure = draw().figure
    with written("--plot", path):
        figure.savefig(path, dpi=150)
