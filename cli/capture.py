"""`moeparity capture`: runs a program and writes what it computes as a trace, or compares it with one."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeparity.errors import MoeparityError

if TYPE_CHECKING:
    from moeparity.evidence.capture.verify.verifier import Verification

Command = Annotated[
    list[str] | None, typer.Argument(metavar="-- COMMAND", help="What to run, such as: -- python train.py --epochs 1")
]


def _print_hook(framework: str | None) -> None:
    from moeparity.hooks.commands import COMMANDS

    if framework is None:
        return
    if framework not in COMMANDS:
        raise MoeparityError(f"--hook: {framework!r} is none of {', '.join(COMMANDS)}. Name one of them.")
    print("\n".join(COMMANDS[framework]))
    raise typer.Exit


Hook = Annotated[
    str | None,
    typer.Option(
        metavar="FRAMEWORK",
        callback=_print_hook,
        is_eager=True,
        help="Run nothing: print what makes verl, trl, slime, miles or nemo-rl write a batch as a log.",
    ),
]
_STATISTICS = "With --verify: how far elements may differ, or min, max, mean and absmax if only those were recorded"


def capture(
    command: Command = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write; `trace` by default, none with --verify.")
    ] = None,
    level: Annotated[str, typer.Option(help="Some of op, module and gradient.")] = "op,module",
    save: Annotated[
        list[str] | None,
        typer.Option(
            help="Keep whole tensors of calls whose module path or name this glob matches; may be repeated. Ids, masks "
            "and positions that modules are given are always kept."
        ),
    ] = None,
    budget: Annotated[str, typer.Option(help="The most bytes of whole tensors that are kept, such as 2G.")] = "1Gi",
    steps: Annotated[str | None, typer.Option(metavar="A:B", help="Record from step A up to step B.")] = None,
    rows: Annotated[bool, typer.Option(help="Digests of rows, not of whole values only.")] = True,
    stats: Annotated[bool, typer.Option(help="Statistics of values.")] = True,
    stacks: Annotated[bool, typer.Option(help="Python stacks of calls.")] = True,
    verify: Annotated[Path | None, typer.Option(help="Compare the program with this trace.")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="With --verify: end at the first difference.")] = False,
    rtol: Annotated[float, typer.Option(min=0, help=f"{_STATISTICS}, relative to the recorded value.")] = 0.0,
    atol: Annotated[float, typer.Option(min=0, help=f"{_STATISTICS}.")] = 0.0,
    hook: Hook = None,
) -> None:
    """Run a program, record what its ops computed, or verify it.

    The exit code is the program's own. Where that is 0: 1 if --verify finds a difference, 2 if nothing was recorded
    or compared.
    """
    from moeparity.evidence.capture.command import run
    from moeparity.evidence.capture.settings import settings_of
    from moeparity.evidence.capture.verify.comparison import Tolerance
    from moeparity.evidence.capture.verify.verifier import Verification
    from moeparity.evidence.trace.reader import open_trace

    settings = settings_of(
        level=level, save=tuple(save or ()), budget=budget, steps=steps, rows=rows, stats=stats, stacks=stacks
    )
    if verify is None and (stop or rtol or atol):
        raise MoeparityError("capture: --stop, --rtol and --atol say how --verify compares. Give --verify too.")
    folder = Path("trace") if out is None and verify is None else out
    with tempfile.TemporaryDirectory() as reports:
        verification = None
        if verify is not None:
            open_trace(verify)
            verification = Verification(verify, Tolerance(rtol, atol), stop, Path(reports))
        code = run(_program_of(command), folder, settings, verification)
        verdict_code = _tell(folder, verification)
    raise typer.Exit(code or verdict_code)


def _program_of(command: list[str] | None) -> list[str]:
    if not command:
        raise MoeparityError("capture: there is nothing to run. Give a command: moeparity capture -- python train.py")
    return command


def _tell(folder: Path | None, verification: Verification | None) -> int:
    """Say what was written and what was found; returns the exit code for that."""
    from moeparity.evidence.capture.command import parts
    from moeparity.evidence.capture.verify import report

    codes = [0]
    ranks = [] if folder is None else parts(folder)
    for part in ranks:
        end = "" if part.whole else "; cut: the program did not get to the end of its recording"
        print(f"{folder}/rank-{part.rank}: {part.nbytes / 1e6:,.1f} MB{end}", file=sys.stderr)
        for note in part.notes:
            print(f"  note: {note}", file=sys.stderr)
    if folder is not None and not ranks:
        print(f"error: {_NOTHING}", file=sys.stderr)
        codes.append(2)
    if verification is not None and verification.reports is not None:
        reports = [report.read(path) for path in sorted(verification.reports.glob("*.json"))]
        for each in sorted(reports, key=lambda each: each.rank):
            print(report.text(each))
        if not reports:
            print(f"error: {_NOTHING}", file=sys.stderr)
        codes += [each.exit_code for each in reports] or [2]
    return max(codes)


_NOTHING = (
    "capture: nothing was recorded. Expected a program that runs ops of PyTorch in the main thread of a Python "
    "process, started without -I, -E or -S, that ends by itself."
)
