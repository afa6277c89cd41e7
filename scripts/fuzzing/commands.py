"""Kinds: whole command lines, in this process and in an empty folder."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from fuzzing import samples
from fuzzing.frame import changed, file, kind

_GEMM = "gemm m=16 n=16 k=16"
_COMMANDS = (
    f"run {_GEMM} --arch t4 --json --without tma --exact",
    f"run {_GEMM} --arch t4 --listing",
    f"run {_GEMM} --arch t4 --html page.html --baseline old.html",
    f"run {_GEMM} --arch tpu-v1 --scope array --config scale.cfg --program program.txt",
    "run network file=net.csv --arch tpu-v1 --scalesim-reports .",
    "run --cubin a.cubin --grid 1 --block 32 --param n=1 --arch a100-sxm4-80gb",
    "run --triton a.py:k --grid 1 --arg n=1 --const B=4 --num-warps 4 --arch a100-sxm4-80gb",
    f"compare {_GEMM} --arch t4 --schedule auto mma",
    f"sweep {_GEMM} --arch t4 --vary m=16,17 --no-tune --workers 1 --store store --csv out.csv --metric cycles",
    f"sensitivity {_GEMM} --arch t4 --only sm.count --no-tune --step 0.1 --workers 1 --store store",
    "check a --config tilewave.toml --tolerance 1% --format text",
    "history a --config tilewave.toml --last 3 --metric cycles",
    "diff a.json b.json --tolerance 1% --json",
    "validate --reference rows.csv --arch t4 --op gemm --split held --workers 1 --store store",
    "validate step.json --arch t4 --clock isolated --kernels best",
    f"run {_GEMM} --arch t4 --as profiler --beside cublas",
    "run llama model=./config.json phase=decode batch=1 seq=16 --arch t4 --strict",
    "serve config.json isl=8 osl=2 concurrency=1 tp=1 --arch t4 --vary concurrency=1,2 --workers 1 --store store",
    "export vidur config.json tp=1 tokens=8 batch=1 keys=16 --arch t4 --workers 1 --store store --out tables",
    "new-machine --base t4 --sms 20 --tensor 2x --l2 8MiB --dram 400GB/s --clock 1.2x --energy 0.7x -o mine.yaml",
    "archs t4 --set sm.count=4 --json", "archs --schema", "ops gemm --json", "opcodes t4 --json", "--version",
    # The last ones are tried first, as they are: both versions of the engine are compiled by then.
    f"run {_GEMM} --arch t4 --l2 warm --clock sustained --data zeros --scope event --schedule auto --set sm.count=4",
    f"trace {_GEMM} --arch t4 --out x.pftrace --window 0:200 --sm 0:1 --kernel 0",
)  # fmt: skip


@kind("command line", *_COMMANDS, change=changed)
def command(line: str, folder: Path) -> int:
    """A command line, whose words are parted by single spaces: an exit code of 0 or 1, or one line on stderr."""
    from sim.app.cli import main

    for name, text in (("tilewave.toml", samples.CONFIG), ("cycles.lock", samples.LOCK), ("a.json", samples.REPORT),
                       ("b.json", samples.REPORT), ("net.csv", samples.TOPOLOGY), ("scale.cfg", samples.SCALESIM),
                       ("program.txt", samples.PROGRAM), ("config.json", samples.MODELS[0]),
                       ("step.json", samples.TRACE)):  # fmt: skip
        file(text, folder, name)
    said = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            code = main([word for word in line.split(" ") if word])
        except SystemExit as end:  # of --help and --version
            code = int(end.code or 0)
    lines = said.getvalue().splitlines()
    if code not in (0, 1, 2) or (code == 2 and len(lines) != 1):
        raise AssertionError(f"exit code {code}, {len(lines)} lines on stderr, the last {lines[-1:]}")
    return code
