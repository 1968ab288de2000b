"""The commands. Everything that computes is imported inside a command, so that `--help` is quick."""

from __future__ import annotations

import atexit
import gc
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from moeparity.cli import failures
from moeparity.cli.bisection import bisect
from moeparity.cli.capture import capture
from moeparity.cli.check import check
from moeparity.cli.contract import contract
from moeparity.cli.diff import diff
from moeparity.cli.engines import engines
from moeparity.cli.explain import explain
from moeparity.cli.failures import crashed, report_error, told_warnings
from moeparity.cli.flips import flips, mine
from moeparity.cli.importing import import_files
from moeparity.cli.init_and_schema import init, schema
from moeparity.cli.metrics import metrics
from moeparity.cli.options import DecodeFrom, Device, MemoryLimit, ScheduleFile, scheduling
from moeparity.cli.probe import certify, probe
from moeparity.cli.ranks import ranks
from moeparity.cli.runs import compare, report, runs
from moeparity.cli.streams import guarded, lost
from moeparity.cli.sweep import sweep
from moeparity.cli.tokens import sample, tokens
from moeparity.cli.variance import variance
from moeparity.cli.weights import weights
from moeparity.errors import MoeparityError, Where, did_you_mean
from moeparity.output.words import printable
from moeparity.paths import is_folder

# Python looks for garbage in all that is loaded when a process ends: a fifth of what a short command takes.
atexit.register(gc.freeze)

_NO_CHOICE = re.compile(r"(?:Value error, )?'(.*)' is not one of ('.*')\.")


class _Commands(typer.core.TyperGroup):
    """The commands; a word that is none of an option's is answered with the one that is meant."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if mistyped := _NO_CHOICE.fullmatch(error.message):
                word, choices = mistyped[1], mistyped[2]
                near = did_you_mean(word, re.findall("'([^']+)'", choices))
                error.message = f"{word!r}: expected one of {choices}.{near}"
            raise


app = typer.Typer(
    cls=_Commands,
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
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="If moeparity itself fails (exit code 70), print the full trace.")
    ] = False,
) -> None:
    """What stands before a command."""
    failures.debug = debug
    try:
        Path.cwd()
    except OSError as error:
        raise MoeparityError(
            f"working directory: cannot be used: {error.strerror}. Relative paths start there; change to one that is."
        ) from None


def forward(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint folder: config.json and safetensors files.")],
    tokens: Annotated[Path, typer.Option(help="A safetensors file with input_ids, or a *.jsonl file.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    profile: Annotated[str, typer.Option(help="A shipped profile, or a path to one.")] = "hf-eager",
    save: Annotated[
        list[str] | None, typer.Option(help="Also write the values of these nodes; may be repeated.")
    ] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Sequences computed together; all by default.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="For text: bytes, checkpoint, or a tokenizer.json.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bf16, fp16, fp32 or fp64; the checkpoint's by default.")] = None,
    decode_from: DecodeFrom = None,
    schedule: ScheduleFile = None,
    memory_limit: MemoryLimit = None,
    device: Device = "auto",
) -> None:
    """Run one variant, write its logits, routes and what is asked for."""
    from moeparity.cli.outputs import outputs
    from moeparity.cli.progress import progress_line
    from moeparity.cli.signals import ignore_signals
    from moeparity.engine.forward import forward as run
    from moeparity.inputs.tokens import read_tokens
    from moeparity.output.writing import write_tensors

    place, steps = Where(Path("--tokenizer")), scheduling(decode_from, schedule, micro_batch)
    with outputs({"--out": out}, unprinted=("--out",)) as files:
        token_set = read_tokens(tokens, checkpoint=checkpoint, tokenizer=tokenizer, named_at=place, scored=False)
        with progress_line() as progress:
            tensors = run(
                checkpoint,
                token_set.input_ids,
                attention_mask=token_set.attention_mask,
                profile=profile,
                micro_batch=micro_batch if steps is None else None,
                schedule=steps,
                dtype=dtype,
                device=device,
                save=save or (),
                memory_limit=memory_limit,
                progress=progress,
            )
        files.file("--out", lambda path: write_tensors(path, tensors))
    ignore_signals()
    files.print(f"{out}: {len(tensors)} tensors, logits {list(tensors['logits'].shape)}")


def show(
    path: Annotated[Path, typer.Argument(help="A recipe, or a checkpoint folder.")],
    profile: Annotated[str, typer.Option(help="With a checkpoint: the profile to bind.")] = "hf-eager",
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the graph for Mermaid instead.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print the graph for Graphviz instead.")] = False,
) -> None:
    """Print the bound plan: every choice, its value and what set it. For a recipe also the toggles.

    A graph shows each kind of layer once, and for a recipe the nodes on which the sides differ.
    """
    from moeparity.bisection.outline import outline_checkpoint, outline_recipe
    from moeparity.cli.render import console, print_plan

    if mermaid and dot:
        raise MoeparityError("show: --mermaid and --dot are two forms of one graph. Give one of them.")
    outline = outline_checkpoint(path, profile) if is_folder(path) else outline_recipe(path)
    if mermaid or dot:
        from moeparity.bisection import diagram
        from moeparity.bisection.drawing import drawing

        print(printable((diagram.mermaid if mermaid else diagram.dot)(drawing(outline))))
    else:
        print_plan(outline, console())


def ops(
    name: Annotated[str | None, typer.Argument(help="One op, in full.")] = None,
    fidelity: Annotated[
        bool, typer.Option("--fidelity", help="Print instead how sure it is of each value that an engine computes so.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="With --fidelity: write it to this file as JSON.")] = None,
) -> None:
    """Print the ops and every choice that they leave open."""
    from moeparity.cli.render import console, print_op, print_ops
    from moeparity.ops.registry import find

    op = None if name is None else find(name)
    if fidelity:
        from moeparity.cli.fidelity import show_fidelity

        show_fidelity(op, json)
    elif json is not None:
        raise MoeparityError("ops: --json writes what --fidelity finds. Give --fidelity too.")
    elif op is None:
        print_ops(console())
    else:
        print_op(op, console())


for _command in (
    init, bisect, check, sweep, variance, metrics, flips, mine, runs, report, compare, diff, weights, ranks, contract,
    show, ops, engines, probe, certify, explain, tokens, sample, forward, schema,
):  # fmt: skip
    app.command()(_command)
app.command("import")(import_files)
# Its own options end where the program's command begins.
app.command(context_settings={"allow_interspersed_args": False})(capture)


def main() -> None:
    """The console script: a user's mistake is one message and exit code 2, a mistake of ours one line and 70."""
    with guarded() as output, told_warnings():
        code = _exit_code()
        reason = lost(output)
        if reason is not None:
            report_error(f"standard output: cannot be written: {reason}. What was to be printed is lost.")
            code = 2
    sys.exit(code)


def _exit_code() -> int:
    """Run the command that was asked for; nothing it raises gets out."""
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
