"""`moeparity weights`: compares fingerprints of weights, however programs fuse, stack and cut them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeparity.cli.options import Html, Json
from moeparity.errors import MoeparityError, did_you_mean, display_path, listed

Weights = Annotated[
    Path, typer.Argument(help="A checkpoint folder; or the fingerprint of one rank, or a folder of those of all ranks.")
]
OtherWeights = Annotated[Path | None, typer.Argument(help="Another; without it A is held to itself.")]


def weights(
    a: Weights,
    b: OtherWeights = None,
    out: Annotated[Path | None, typer.Option(help="Write the fingerprint of checkpoint A to this file.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Round a checkpoint's weights first: bf16, fp16 or fp32.")] = None,
    json: Json = None,
    html: Html = None,
) -> None:
    """Which weights of two programs, or of a checkpoint, differ.

    Bits of rows of the checkpoint's tensors, however a program fuses, stacks and cuts them. Exit code 0 equal bits, and
    nothing left out; 1 they differ, are missing or doubled; 2 a file could not be read; 3 some were not compared.
    """
    from moeparity.cli.outputs import outputs
    from moeparity.evidence.weights.compare import compare
    from moeparity.evidence.weights.fingerprint_files import open_weights, write_weights
    from moeparity.evidence.weights.show import document
    from moeparity.evidence.weights.weight_layout import DTYPES

    if dtype is not None and dtype not in DTYPES:
        raise MoeparityError(f"--dtype {dtype!r}: expected one of {listed(DTYPES)}.{did_you_mean(dtype, DTYPES)}")
    with outputs({"--out": out, "--json": json, "--html": html}, unprinted=("--out",)) as files:
        with files.progress() as progress:
            ours = open_weights(a, dtype, progress)
            theirs = None if b is None else open_weights(b, dtype if (b / "config.json").exists() else None, progress)
        if out is not None and ours.checkpoint is None:
            raise MoeparityError(
                "weights: --out writes the fingerprint of a checkpoint, and A is a fingerprint already."
            )
        report = compare(ours, theirs)
        files.file("--out", lambda path: write_weights(path, ours.by_rank[0]))
        subject = " ".join(display_path(path) for path in (a, b) if path is not None)
        files.report(report, document(report, subject))
    raise typer.Exit(report.exit_code)
