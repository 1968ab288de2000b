"""`moeparity tokens`: shows a token file; makes one from a log, of what a recipe samples, or of drafted tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeparity.cli.help import FILES
from moeparity.cli.options import AllowCode, Device
from moeparity.errors import MoeparityError

if TYPE_CHECKING:
    from moeparity.inputs.tokens import TokenSet
    from moeparity.inputs.tokens.tokenizer import Tokenizer
    from moeparity.output.blocks import Table


_LOGS, _SAMPLING, _DRAFTS = "With --from-log", "With --sample", "With --drafts"

Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="A recipe (*.yaml) or a token file; with --from-log, logs."),
]
TokenizerName = Annotated[str | None, typer.Option(help="Of a token file: bytes, checkpoint, or a tokenizer.json.")]
Checkpoint = Annotated[Path | None, typer.Option(help="Of a token file: the checkpoint it is for.")]
Sequences = Annotated[
    int | None, typer.Option(min=1, help="Sequences to print, 2 by default; with --from-log to write, all by default.")
]
Length = Annotated[int, typer.Option(min=1, help="Tokens to print of each.")]
Sample = Annotated[
    bool, typer.Option("--sample", help="Instead, continue the prompts of a recipe that has `tokens: {sample: ...}`.")
]
FromLog = Annotated[bool, typer.Option("--from-log", help="Instead, take the sampler's side of logs.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="With --sample, --from-log or --drafts: the token file to write, safetensors, or *.jsonl from a log.",
        rich_help_panel=FILES,
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option("--format", help="The format of the logs, if their contents leave it open.", rich_help_panel=_LOGS),
]
Drafted = Annotated[
    str | None,
    typer.Option(
        "--drafts",
        metavar="FILE|K:RATE",
        help="Instead, verify drafts of a token file's sequences: a file of the ids drafted in each step, or K tokens "
        "a step, of which each is right at a rate, as 3:0.7.",
    ),
]
Steps = Annotated[
    Path | None,
    typer.Option("--schedule", help="The steps to write, for `schedule: {file: ...}`.", rich_help_panel=_DRAFTS),
]
Kept = Annotated[
    int,
    typer.Option(
        "--keep-rejected",
        min=0,
        help="Plant a mistake: so many rejected drafts of each step stay in the cache, and later steps read them.",
        rich_help_panel=_DRAFTS,
    ),
]
Server = Annotated[
    bool,
    typer.Option(
        "--server",
        help="Steps of all sequences together, after a prefill, as servers do; else one sequence after the other, as "
        "transformers does.",
        rich_help_panel=_DRAFTS,
    ),
]


def tokens(
    files: Files,
    tokenizer: TokenizerName = None,
    checkpoint: Checkpoint = None,
    sequences: Sequences = None,
    length: Length = 64,
    sample: Sample = False,
    from_log: FromLog = False,
    format: LogFormat = None,
    drafts: Drafted = None,
    schedule: Steps = None,
    server: Server = False,
    keep_rejected: Kept = 0,
    out: Out = None,
    allow_code: AllowCode = False,
    device: Device = "auto",
) -> None:
    """Token ids beside their text; or the tokens of a log, or sampled.

    A recipe takes them as `tokens: {file: ..., sampled_from: ...}`.
    """
    by_option = {"--sample": sample, "--from-log": from_log, "--drafts": drafts is not None}
    of_given = [option for option, is_given in by_option.items() if is_given]
    if len(of_given) > 1:
        raise MoeparityError(
            "tokens: --sample runs a recipe, --from-log reads logs, --drafts reads a token file. Give one of them."
        )
    if (schedule is None) != (drafts is None) or ((server or keep_rejected) and drafts is None):
        raise MoeparityError("tokens: --drafts and --schedule, the steps to write, go together. Give both.")
    wanted = of_given[0] if of_given else None
    if (out is None) != (wanted is None):
        lacking = "--out, the file to write" if out is None else "--sample, --from-log or --drafts, which say what of"
        raise MoeparityError(f"tokens: {wanted or '--out'} needs {lacking}. Give both.")
    if format is not None and not from_log:
        raise MoeparityError("tokens: --format says what logs are. Give --from-log too.")
    if len(files) > 1 and not from_log:
        raise MoeparityError(f"tokens: one recipe or token file is read; {len(files)} were given. Name one.")
    if out is None:
        _print(files[0], tokenizer, checkpoint, sequences or 2, length)
    elif drafts is not None and schedule is not None:
        _draft(files[0], drafts, (tokenizer, checkpoint), (out, schedule), flat=server, kept_drafts=keep_rejected)
    elif sample:
        _sample(files[0], out, allow_code=allow_code, device=device)
    else:
        _write(files, out, format, sequences)


def _write(files: list[Path], out: Path, format: str | None, most: int | None) -> None:
    """Make a token file from logs, and say what is in it."""
    from moeparity.cli.outputs import outputs
    from moeparity.inputs.tokens.jsonl import lines
    from moeparity.inputs.tokens.tensorfile import file_contents
    from moeparity.logs.opening import open_sampled
    from moeparity.logs.tokens import about, tokens_of
    from moeparity.output.writing import write_tensors, write_text

    with outputs({"--out": out}, unprinted=("--out",)) as written:
        logged = tokens_of(open_sampled(files, format=format), most=most)
        if out.suffix == ".jsonl":
            written.file("--out", lambda path: write_text(path, "".join(f"{line}\n" for line in lines(logged.tokens))))
        else:
            written.file("--out", lambda path: write_tensors(path, *file_contents(logged.tokens)))
        for sentence in about(logged, out):
            written.console().print(sentence)


def _draft(
    path: Path,
    drafts: str,
    text: tuple[str | None, Path | None],
    out: tuple[Path, Path],
    *,
    flat: bool,
    kept_drafts: int,
) -> None:
    """Write the tokens of verify steps, and these steps; `text` is the tokenizer and the checkpoint of a token file."""
    from moeparity.cli.outputs import outputs
    from moeparity.errors import counted
    from moeparity.inputs.tokens.drafted import step_lines, with_drafts
    from moeparity.inputs.tokens.tensorfile import file_contents
    from moeparity.output.writing import write_tensors, write_text

    with outputs({"--out": out[0], "--schedule": out[1]}, unprinted=("--out", "--schedule")) as written:
        token_set, of = with_drafts(_of_file(path, *text)[0], drafts, flat=flat, kept_drafts=kept_drafts)
        written.file("--out", lambda file: write_tensors(file, *file_contents(token_set)))
        written.file("--schedule", lambda file: write_text(file, "\n".join(step_lines(of.steps))))
        console = written.console()
        console.print(
            f"{out[1]}: {counted(len(of.steps), 'step')}; {of.accepted} of {counted(of.drafted, 'draft')} accepted"
        )
        console.print(
            f"{out[0]}: {counted(len(token_set.input_ids), 'sequence')}; the last {len(of.added)}, unscored, are steps "
            "with a rejected draft"
        )
        console.print(f"next: tokens: {{file: {out[0].name}}}, and of the sampler schedule: {{file: {out[1].name}}}")


def _print(path: Path, tokenizer: str | None, checkpoint: Path | None, sequences: int, length: int) -> None:
    from moeparity.cli.render import show
    from moeparity.output.blocks import lines

    token_set, vocabulary = (
        _of_recipe(path) if path.suffix in {".yaml", ".yml"} else _of_file(path, tokenizer, checkpoint)
    )
    rows, width = token_set.input_ids.shape
    about = f"{rows} sequences of up to {width} tokens, {int(token_set.loss_mask.sum())} scored, {token_set.pads} pads"
    shown = [
        part
        for row in range(min(sequences, rows))
        for part in (lines("", f"sequence {row}"), _table(token_set, vocabulary, row, length))
    ]
    show([lines(about), *shown])


def _of_recipe(path: Path) -> tuple[TokenSet, Tokenizer | None]:
    from moeparity.errors import Where
    from moeparity.inputs.tokens.pairs import paired
    from moeparity.inputs.tokens.reader import recipe_tokens
    from moeparity.inputs.tokens.tokenizer import open_tokenizer
    from moeparity.plan.config import Config
    from moeparity.plan.expand import expand
    from moeparity.plan.spec import reader

    recipe = reader.read_recipe(path)
    folder = reader.find_file(recipe.checkpoint, Where(path, recipe.line_of("checkpoint")), "checkpoint")
    name = recipe.tokens.tokenizer
    where = Where(path, recipe.tokens.line_of("tokenizer"))
    token_set = recipe_tokens(recipe, path, folder)
    if recipe.tokens.sample is None:
        token_set = paired(token_set, expand(Config(folder / "config.json")), Where(path.parent / recipe.tokens.file))
    return token_set, open_tokenizer(name, where, folder) if name else None


def _of_file(path: Path, name: str | None, checkpoint: Path | None) -> tuple[TokenSet, Tokenizer | None]:
    from moeparity.errors import Where
    from moeparity.inputs.tokens import read_tokens
    from moeparity.inputs.tokens.tokenizer import open_tokenizer

    where = Where(Path("--tokenizer"))
    token_set = read_tokens(path, checkpoint=checkpoint, tokenizer=name, named_at=where, scored=False)
    return token_set, open_tokenizer(name, where, checkpoint) if name else None


def _table(token_set: TokenSet, vocabulary: Tokenizer | None, row: int, length: int) -> Table:
    """The tokens of a sequence, with a column for each kind of data that the file has on them."""
    from moeparity.output.blocks import Column, table

    cells: dict[str, Callable[[int], str]] = {
        "at": str,
        "id": lambda at: str(int(token_set.input_ids[row, at])),
    }
    if vocabulary is not None:
        cells["text"] = lambda at: vocabulary.piece(int(token_set.input_ids[row, at]))
    cells["scored"] = lambda at: "yes" if token_set.loss_mask[row, at] else ""
    if (labels := token_set.labels) is not None:
        cells["label"] = lambda at: token_set.label_names[int(labels[row, at])]
    if (logprobs := token_set.logprobs) is not None:
        cells["log P"] = lambda at: "" if logprobs[row, at].isnan() else f"{float(logprobs[row, at]):.4g}"
    real = token_set.attention_mask[row].nonzero().flatten()[:length].tolist()
    return table([Column(name, "name") for name in cells], [[cell(at) for cell in cells.values()] for at in real])


def _sample(recipe: Path, out: Path, *, allow_code: bool, device: str) -> None:
    """Continue a recipe's prompts, write the tokens, and say how a recipe uses them."""
    from moeparity.bisection.options import Options
    from moeparity.bisection.prepare import prepare
    from moeparity.bisection.sample import generate, required_sample
    from moeparity.cli.outputs import outputs
    from moeparity.cli.signals import ignore_signals
    from moeparity.inputs.tokens.tensorfile import file_contents
    from moeparity.output.writing import write_tensors

    with outputs({"--out": out}, unprinted=("--out",)) as files:
        with files.progress() as progress:
            study = prepare(recipe, device=device, options=Options(allow_code=allow_code), progress=progress)
            spec = required_sample(study)
            tokens = generate(study, progress=progress).tokens
        files.file("--out", lambda path: write_tensors(path, *file_contents(tokens)))
    ignore_signals()
    rows, length = tokens.input_ids.shape
    console = files.console()
    console.print(f"{out}: {rows} x {length} tokens, {int(tokens.loss_mask.sum())} generated, {tokens.pads} pads")
    console.print(f"next: tokens: {{file: {out.name}, sampled_from: {spec.source}}}")
