"""All commands. Whatever computes is imported inside a command, so that `--help` is quick."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from moeparity.cli import failures
from moeparity.cli.bisection import bisect
from moeparity.cli.capture import capture
from moeparity.cli.check import check
from moeparity.cli.contract import contract
from moeparity.cli.diff import diff
from moeparity.cli.doctor import doctor
from moeparity.cli.explain import explain
from moeparity.cli.failures import crashed, report_error, told_warnings
from moeparity.cli.flips import flips
from moeparity.cli.forward import forward
from moeparity.cli.help import CLOSER, EVERYDAY, PROGRAMS, Command, Group
from moeparity.cli.importing import import_files
from moeparity.cli.init import init
from moeparity.cli.kernel import certify, plans, probe
from moeparity.cli.metrics import metrics
from moeparity.cli.quantise import quantise
from moeparity.cli.ranks import ranks
from moeparity.cli.runs import list_runs, show_run
from moeparity.cli.show import engines, formats, launch, ops, plan, schema
from moeparity.cli.streams import guarded, lost
from moeparity.cli.sweep import sweep
from moeparity.cli.tokens import tokens
from moeparity.cli.variance import variance
from moeparity.cli.weights import weights
from moeparity.errors import MoeparityError

# At its end a process would search everything that is loaded for garbage: a fifth of the time of a short command.
atexit.register(gc.freeze)

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(f"moeparity {version('moeparity')}")
        raise typer.Exit


@app.callback(
    help="Which numerical choice makes this MoE checkpoint's log-probabilities differ between trainer and server?"
)
def _moeparity(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="If moeparity itself fails (exit code 70), print the full trace.")
    ] = False,
) -> None:
    """What stands before a command."""
    failures.debug = debug
    if context.invoked_subcommand != "capture":  # whose program has an environment of its own
        # torch's threads wait for each other after every op. Threads that spin take the core from those they wait for,
        # if another process uses a core: 332 s instead of 9 s on two cores. The variable is read when torch is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        Path.cwd()
    except OSError as error:
        raise MoeparityError(
            f"working directory: cannot be used: {error.strerror}. Relative paths start there; change to one that is."
        ) from None


def _add(group: typer.Typer, commands: Mapping[str, Callable[..., None]], panel: str | None = None) -> None:
    for name, command in commands.items():
        # Options after the program that `capture` runs belong to that program.
        settings = {"allow_interspersed_args": False} if name == "capture" else None
        group.command(name, cls=Command, rich_help_panel=panel, context_settings=settings)(command)


def _group(name: str, says: str, commands: Mapping[str, Callable[..., None]]) -> None:
    group = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None)
    _add(group, commands)
    app.add_typer(group, name=name, help=says, rich_help_panel=CLOSER)


_EVERYDAY = {"init": init, "doctor": doctor, "bisect": bisect, "check": check, "sweep": sweep, "metrics": metrics}
_PROGRAMS = {
    "capture": capture, "import": import_files, "diff": diff, "explain": explain, "weights": weights, "ranks": ranks,
    "contract": contract,
}  # fmt: skip
_CLOSER = {"flips": flips, "variance": variance, "tokens": tokens, "forward": forward, "quantise": quantise}
_SHOW = {"plan": plan, "ops": ops, "engines": engines, "launch": launch, "formats": formats, "schema": schema}

_add(app, _EVERYDAY, EVERYDAY)
_add(app, _PROGRAMS, PROGRAMS)
_add(app, _CLOSER, CLOSER)
_KERNEL = {"probe": probe, "certify": certify, "plans": plans}
_group("kernel", "In which order a kernel adds: `probe`, `certify`, `plans`.", _KERNEL)
_group("runs", "Runs kept with --run: `list` them, or `show` one again.", {"list": list_runs, "show": show_run})
_group("show", "Known before a run: plan, ops, engines, launch, formats, schema.", _SHOW)


def main() -> None:
    """The console script. A user's mistake ends in one message and exit code 2, a mistake of moeparity's in one line
    and 70.
    """
    with guarded() as output, told_warnings():
        code = _exit_code()
        reason = lost(output)
        if reason is not None:
            report_error(f"standard output: cannot be written: {reason}. What was to be printed is lost.")
            code = 2
    sys.exit(code)


def _exit_code() -> int:
    """Run the requested command; no exception gets out."""
    code = 0
    try:
        app()
    except SystemExit as exit_error:
        code = exit_error.code if isinstance(exit_error.code, int) else int(exit_error.code is not None)
    except MoeparityError as error:
        report_error(str(error))
        code = 2
    except BaseException as error:  # noqa: BLE001  panics of Rust too: a crash must not end with 1, "divergence"
        code = crashed(error)
    return code
