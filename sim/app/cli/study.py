"""Subcommands of studies: sweep, serve, export, sensitivity, optimize, check, history, diff; imported when they run."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arch.errors import InputError
from arch.near import hint
from sim.app.cli import arguments
from sim.app.cli.arguments import Parser

if TYPE_CHECKING:
    from sim.app.study.sweep import Sweep

TABLES = (".csv", ".parquet")


def add_commands(commands: Any) -> None:
    """Adds the parsers of studies to the command line's."""
    for add in (
        _add_sweep,
        _add_serve,
        _add_export,
        _add_sensitivity,
        _add_optimize,
        _add_check,
        _add_history,
        _add_grade,
        _add_diff,
    ):
        add(commands)


def _add_sweep(commands: Any) -> None:
    """Adds the parser of `sweep`."""
    sweep = commands.add_parser(
        "sweep", help="one workload over ranges of figures, shapes, schedules", allow_abbrev=False
    )
    _add_base(sweep, vary_help="KEY=1,2,4 or KEY=A:B:STEP, A:B:*F, A:B:linN, A:B:logN; keys of one --vary go together, "
              "several --vary are crossed")  # fmt: skip
    arguments.add_running(sweep)
    sweep.add_argument(
        "--shard", default="", metavar="I/N", help="run the Ith of N parts of the points, for job arrays"
    )
    sweep.add_argument(
        "--from", nargs="+", dest="stores", default=[], metavar="FILE", help="take results of other stores first"
    )
    sweep.add_argument("--ranges", action="store_true", help="figures with a range alone at both ends of it")
    sweep.add_argument("--estimate", action="store_true", help="run five points, say how long all will take, and stop")
    sweep.add_argument("--csv", metavar="FILE", help="write one row a run (.csv, .parquet)")
    sweep.add_argument("--melt", action="store_true", help="one row a run and metric in --csv")
    sweep.add_argument("--metric", default="time_us", metavar="M", help="what --plot shows; default time_us")
    sweep.add_argument("--kind", default="auto", metavar="K", help="line or heat; default: what fits")
    sweep.add_argument(
        "--pareto", nargs=2, metavar=("X", "Y"), help="list, and with --plot draw, the runs best in both"
    )
    arguments.add_output(sweep)
    sweep.set_defaults(command=_sweep)


def _add_serve(commands: Any) -> None:
    """Adds the parser of `serve`."""
    serve = commands.add_parser(
        "serve", help="a model behind a server: latency and throughput by concurrency", allow_abbrev=False
    )
    add: arguments.Add = serve.add_argument
    add("operator", metavar="MODEL", help="a published model (docs/models.md), or the path of its config.json")
    add("keys", nargs="*", default=[], metavar="k=v", help="tp, ep, dp, isl, osl, concurrency, budget, prefill, ...")
    serve.set_defaults(file=None)
    add("--arch", action="append", default=[], metavar="A", help="preset or machine file; may be repeated")
    add(
        "--vary", nargs="+", action="append", default=[], metavar="KEY=VALUES",
        help="as in sweep: concurrency=1:256:*2, tp=2,4, dram.bandwidth=3TB/s,5TB/s, arch=h100-sxm,h200-sxm",
    )  # fmt: skip
    arguments.add_overrides(serve)
    add(
        "--schedule", default="fused_graph", metavar="S",
        help="how a step of decoding is called: fused_graph (default), graph, fused or eager",
    )  # fmt: skip
    add("--clock", default="sustained", metavar="CLOCK", help="sustained (default), isolated, or locked: '1.41 GHz'")
    add("--joins", action="store_true", help="simulate steps between the grid's points, too: what joining costs")
    arguments.add_running(serve)
    arguments.add_output(serve)
    serve.set_defaults(command=_serve)


def _add_export(commands: Any) -> None:
    """Adds the parser of `export`."""
    export = commands.add_parser(
        "export", help="operator tables and traces of a model that other simulators read", allow_abbrev=False
    )
    add: arguments.Add = export.add_argument
    add("form", metavar="FORM", help="aiconfigurator, vidur or llmservingsim (tables), or chakra (traces of a step)")
    add("operator", metavar="MODEL", help="a published model (docs/models.md), or the path of its config.json")
    add(
        "keys", nargs="*", default=[], metavar="k=v",
        help="of tables tp, ep, page, dtype; tokens, batch, keys: how far they go. Of traces those of tilewave model",
    )  # fmt: skip
    export.set_defaults(file=None)
    arguments.add_machine(export)
    add("--out", required=True, metavar="FOLDER", help="where files are written")
    add("--force", action="store_true", help="let files be overwritten")
    arguments.add_workers(export)
    export.set_defaults(command=_export)


def _add_sensitivity(commands: Any) -> None:
    """Adds the parser of `sensitivity`."""
    found = commands.add_parser("sensitivity", help="which hardware figures move this workload", allow_abbrev=False)
    arguments.add_workload(found)
    arguments.add_machine(found)
    _add_conditions(found)
    found.add_argument(
        "--step", type=arguments.share, default=0.1, metavar="S", help="relative change of each figure; default 10 %%"
    )
    found.add_argument(
        "--only", nargs="+", action="extend", default=[], metavar="PATTERN", help="only these figures, such as 'dram.*'"
    )
    arguments.add_running(found)
    arguments.add_output(found)
    found.set_defaults(command=_sensitivity)


def _add_optimize(commands: Any) -> None:
    """Adds the parser of `optimize`."""
    best = commands.add_parser("optimize", help="search ranges for the best run (Optuna)", allow_abbrev=False)
    _add_base(best, vary_help="KEY=VALUES as in sweep: one parameter of the search")
    best.add_argument(
        "--goal",
        nargs="+",
        action="extend",
        default=["time_us"],
        metavar="M",
        help="one or two metrics; default time_us",
    )
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
    best.add_argument("--trials", type=arguments.positive, default=40, metavar="N", help="runs to try; default 40")
    best.add_argument("--seed", type=int, default=0, metavar="S", help="of the search; default 0")
    arguments.add_running(best)
    arguments.add_output(best)
    best.set_defaults(command=_optimize)


def _add_check(commands: Any) -> None:
    """Adds the parser of `check`."""
    check = commands.add_parser("check", help="cases of tilewave.toml against recorded cycles", allow_abbrev=False)
    check.add_argument("names", nargs="*", metavar="NAME", help="only these cases (patterns); default: all")
    check.add_argument("--config", default="tilewave.toml", metavar="FILE", help="default: tilewave.toml")
    check.add_argument("--against", default="", metavar="COMMIT", help="compare with cycles.lock at origin/main, say")
    check.add_argument("--update", action="store_true", help="record what is there now in cycles.lock beside it")
    check.add_argument(
        "--tolerance", type=arguments.share, metavar="T", help="accepted change, such as 1%%; default: the file's, or 0"
    )
    check.add_argument("--format", default="text", metavar="F", help="text (default), json, junit, github, markdown")
    check.add_argument("--json", dest="format", action="store_const", const="json", help="same as --format json")
    check.add_argument("--out", metavar="FILE", help="write to a file instead of stdout")
    check.add_argument("--force", action="store_true", help="let FILE be overwritten")
    arguments.add_workers(check)
    check.set_defaults(command=_check)


def _add_history(commands: Any) -> None:
    """Adds the parser of `history`."""
    past = commands.add_parser("history", help="a case's recorded cycles, commit by commit", allow_abbrev=False)
    past.add_argument("name", metavar="NAME", help="a case of cycles.lock")
    past.add_argument(
        "--config", default="tilewave.toml", metavar="FILE", help="beside whose lock; default: tilewave.toml"
    )
    past.add_argument("--last", type=arguments.positive, default=1000, metavar="N", help="commits; default 1000")
    past.add_argument("--metric", default="cycles", metavar="M", help="what --plot shows: cycles, time_us, energy_j")
    arguments.add_output(past)
    past.set_defaults(command=_history)


def _add_grade(commands: Any) -> None:
    """Adds the parser of `grade`."""
    graded = commands.add_parser("grade", help="judge a lab's notebook: executes its answers", allow_abbrev=False)
    graded.add_argument(
        "notebooks", nargs="+", metavar="LAB.ipynb",
        help="of docs/labs, with answers; they are executed. Several of one lab are ranked by simulated cycles",
    )  # fmt: skip
    graded.add_argument("--seconds", type=arguments.positive, default=600, metavar="S", help="limit; default 600")
    graded.add_argument("--json", action="store_true", help="JSON instead of text, for autograders")
    graded.add_argument("--gradescope", metavar="results.json", help="write what Gradescope's autograder reads")
    graded.add_argument("--force", action="store_true", help="let files be overwritten")
    graded.set_defaults(command=_grade)


def _add_diff(commands: Any) -> None:
    """Adds the parser of `diff`."""
    diff = commands.add_parser("diff", help="explain the difference between two runs", allow_abbrev=False)
    diff.add_argument("old", metavar="A.json", help="a report of tilewave run --json")
    diff.add_argument("new", metavar="B.json", help="another one")
    diff.add_argument("--tolerance", type=arguments.share, default=0.0, metavar="T", help="accepted change; default 0")
    diff.add_argument("--json", action="store_true", help="JSON instead of text")
    diff.set_defaults(command=_diff)


def _add_base(parser: Parser, *, vary_help: str) -> None:
    arguments.add_workload(parser)
    parser.add_argument("--arch", nargs="+", action="extend", default=[], metavar="A", help="presets or machine files")
    parser.add_argument("--vary", nargs="+", action="append", default=[], metavar="KEY=VALUES", help=vary_help)
    arguments.add_overrides(parser)
    _add_conditions(parser)


def _add_conditions(parser: Parser) -> None:
    arguments.add_schedule(parser)
    arguments.add_conditions(parser)
    arguments.add_scope(parser)
    arguments.add_choice(parser)


# ---------------------------------------------------------------------------------------------------- commands


def _sweep(options: argparse.Namespace) -> int:
    table = arguments.target("--csv", options.csv, TABLES, options.force)
    picture = arguments.picture(options)
    if options.melt and table is None:
        raise InputError("--melt goes with --csv FILE")
    from sim.app.report.render import show
    from sim.app.study.metrics import known_metric
    from sim.app.study.store import default_store, opened
    from sim.app.study.sweep import KINDS, sweep

    for metric in (options.metric, *(options.pareto or ())):
        known_metric(metric)
    if options.kind not in KINDS:
        raise InputError(f"--kind {options.kind}: must be one of {', '.join(KINDS)}")
    text = options.workload
    if options.stores:
        with opened(Path(options.store) if options.store else default_store()) as store:
            for path in options.stores:
                store.take(Path(path))
    run = partial(
        sweep, text, options.arch, options.vary, shard=options.shard, ranges=options.ranges, **_conditions(options)
    )
    if options.estimate:
        from sim.app.study.foresee import foresee

        place = Path(options.store) if options.store else None
        arguments.show(foresee(partial(run, store=place), options.workers), options.json)
        return 0
    with arguments.counted(text) as progress:
        found = run(progress=progress, **_running(options))
    arguments.show(found, options.json)
    if not options.json:
        if options.pareto:
            print()
            show([found.pareto_section(*options.pareto)])
        if found.kept:
            print(f"\n{found.kept} results were in the store")
    if table:
        with arguments.written("--csv", table) as part:
            found.write(part, melt=options.melt)
    if picture:
        arguments.save(lambda: _sweep_figure(found, options), picture)
    return 1 if found.failed else 0


def _sweep_figure(found: Sweep, options: argparse.Namespace) -> Any:
    drawn = found.plot_pareto(*options.pareto) if options.pareto else found.plot(options.metric, kind=options.kind)
    return drawn.figure


def _serve(options: argparse.Namespace) -> int:
    picture = arguments.picture(options)
    from sim.app.serving.curve import serve

    how = {name: getattr(options, name) for name in ("set", "schedule", "clock", "joins")}
    with arguments.counted(options.workload) as progress:
        found = serve(options.workload, options.arch, options.vary, progress=progress, **_running(options), **how)
    arguments.show(found, options.json)
    if picture:
        arguments.save(lambda: found.plot().figure, picture)
    return 0


def _export(options: argparse.Namespace) -> int:
    from sim.app.export.export import export

    folder = Path(options.out)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not options.force)):
        raise InputError(f"--out {folder}: must be a new or empty folder; --force writes into it")
    store = Path(options.store) if options.store else None
    with arguments.counted(options.workload) as progress:
        written = export(
            options.form, options.workload, options.arch, folder, set=options.set, store=store,
            workers=options.workers, progress=progress,
        )  # fmt: skip
    print("\n".join(map(str, written)))
    return 0


def _sensitivity(options: argparse.Namespace) -> int:
    picture = arguments.picture(options)
    from sim.app.study.sensitivity import sensitivity

    text = options.workload
    with arguments.counted(text) as progress:
        found = sensitivity(
            text,
            options.arch,
            step=options.step,
            only=options.only,
            progress=progress,
            **_running(options),
            **_conditions(options),
        )
    arguments.show(found, options.json)
    if picture:
        arguments.save(lambda: found.plot().figure, picture)
    return 0


def _optimize(options: argparse.Namespace) -> int:
    picture = arguments.picture(options)
    if len(options.arch) != 1:
        raise InputError("--arch A: a search has one machine to start from")
    from sim.app.study.optimize import optimize

    text = options.workload
    with arguments.counted(text) as progress:
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
            **_conditions(options),
        )
    arguments.show(found, options.json)
    if picture:
        arguments.save(lambda: found.plot().figure, picture)
    return 0 if found.best else 1


def _check(options: argparse.Namespace) -> int:
    path = arguments.target("--out", options.out, (), options.force)
    from sim.app.study.check import check
    from sim.app.study.check_formats import FORMATS
    from sim.app.study.store import default_store, opened

    if options.format not in FORMATS:
        near = hint(options.format, FORMATS)
        raise InputError(f"--format {options.format}: must be one of {', '.join(FORMATS)}{near}")
    with (
        opened(Path(options.store) if options.store else default_store()) as store,
        arguments.counted(options.config) as progress,
    ):
        found = check(
            Path(options.config),
            names=options.names,
            update=options.update,
            against=options.against,
            tolerance=options.tolerance,
            store=store,
            workers=options.workers,
            progress=progress,
        )
    text = FORMATS[options.format](found)
    if path:
        with arguments.written("--out", path) as part:
            part.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    return found.exit_code


def _history(options: argparse.Namespace) -> int:
    picture = arguments.picture(options)
    from sim.app.study import lockfile
    from sim.app.study.history import METRICS, history

    if options.metric not in METRICS:
        known = ", ".join(METRICS)
        raise InputError(f"--metric {options.metric}: must be one of {known}{hint(options.metric, METRICS)}")
    found = history(Path(options.config).with_name(lockfile.NAME), options.name, options.last)
    arguments.show(found, options.json)
    if picture:
        arguments.save(lambda: found.plot(options.metric).figure, picture)
    return 0


def _grade(options: argparse.Namespace) -> int:
    from sim.app.labs.grade import Board, grade

    path = arguments.target("--gradescope", options.gradescope, (".json",), options.force)
    if path and len(options.notebooks) > 1:
        raise InputError("--gradescope goes with one notebook")
    grades = {name: grade(Path(name), options.seconds) for name in dict.fromkeys(options.notebooks)}
    if len(grades) > 1:
        arguments.show(Board(grades), options.json)
        return 0 if all(one.points == one.of for one in grades.values()) else 1
    (found,) = grades.values()
    if path:
        with arguments.written("--gradescope", path) as part:
            part.write_text(arguments.as_json(found.for_gradescope()), encoding="utf-8")
    arguments.show(found, options.json)
    return 0 if found.points == found.of else 1


def _diff(options: argparse.Namespace) -> int:
    from sim.app.study.difference import difference

    found = difference(Path(options.old), Path(options.new), options.tolerance)
    arguments.show(found, options.json)
    return 1 if found.differs else 0


# ---------------------------------------------------------------------------------------------------- what they share


def _conditions(options: argparse.Namespace) -> dict[str, Any]:
    return arguments.conditions(options, "schedule", "hold")


def _running(options: argparse.Namespace) -> dict[str, Any]:
    store = Path(options.store) if options.store else None
    return {"store": store, "workers": options.workers, "executor": options.executor, "scheduler": options.scheduler}
