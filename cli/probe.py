"""`moeparity probe`: in which order a black-box callable adds, found by calling it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str, typer.Argument(metavar="MODULE:FUNCTION", help="Python code; modules in the current directory are found.")
]
Leaves = Annotated[
    int | None, typer.Option("--n", help="How many values each sum adds up; for all_reduce the number of processes.")
]
KindOption = Annotated[
    str | None,
    typer.Option(
        "--kind",
        help="sum, dot, linear, combine, rms_norm, softmax or all_reduce: how it is called. By default told from the "
        "names of its parameters.",
    ),
]
Dtype = Annotated[str, typer.Option(help="Dtype of the arguments: bf16, fp16 or fp32.")]


def probe(
    target: Target,
    n: Leaves = None,
    kind: KindOption = None,
    dtype: Dtype = "fp32",
    m: Annotated[str, typer.Option("--m", help="Rows; several, as in 1,2,4:8, find where the tree changes.")] = "",
    positions: Annotated[
        int | None,
        typer.Option(min=1, help="The other axis of the output: columns of a GEMM, elements of a row or a message."),
    ] = None,
    threads: Annotated[str, typer.Option(help="Torch's threads; several, as in 1,2.")] = "",
    alignment: Annotated[
        str, typer.Option(help="Elements from an aligned address to where each argument starts; several, as in 0:3.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write the orders found as a YAML fragment for a profile to this file.")
    ] = None,
) -> None:
    """Find in which order a function adds, by calling it. A tree for each class of its outputs.

    The function named is imported and run. Exit code 0; 2 for a function that cannot be called as its kind is.
    """
    from moeparity.output.files import refuse_unwritable, write_text
    from moeparity.probe.run import Request, run

    if out is not None:
        refuse_unwritable(out)
    request = Request(target, n=n, kind=kind, dtype=dtype, m=m, width=positions, threads=threads, alignment=alignment)
    text, fragment = run(request, Path.cwd())
    if text:
        print(text)
    if out is not None and fragment:
        write_text(out, fragment)
