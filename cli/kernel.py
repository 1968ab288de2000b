"""`moeparity kernel`: finds in which order a black-box callable adds (`probe`), checks a stated order (`certify`), or
asks cuBLASLt how it plans GEMMs (`plans`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeparity.cli.help import FILES
from moeparity.cli.options import Html
from moeparity.errors import MoeparityError
from moeparity.paths import is_folder

if TYPE_CHECKING:
    from moeparity.plan.bound import Plan
    from moeparity.plan.graph import Node

_TARGET = typer.Argument(
    metavar="MODULE:FUNCTION|KERNEL.yaml",
    help="Python code (modules in the current directory are found), or a file that says how a CUDA or PTX kernel "
    "is launched; it runs without a GPU.",
)
Target = Annotated[str, _TARGET]
OptionalTarget = Annotated[str | None, _TARGET]
Collective = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="In place of a function, under torchrun: the job's own all_reduce or reduce_scatter_tensor, by NCCL "
        "where there are GPUs, else by gloo.",
    ),
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
Dtype = Annotated[
    str | None,
    typer.Option(help="Dtype of a function's arguments: bf16, fp16 or fp32 (the default); a kernel file says its own."),
]


def probe(
    target: OptionalTarget = None,
    collective: Collective = None,
    n: Leaves = None,
    kind: KindOption = None,
    dtype: Dtype = None,
    m: Annotated[str, typer.Option("--m", help="Rows; several, as in 1,2,4:8, find where the tree changes.")] = "",
    positions: Annotated[
        str,
        typer.Option(
            help="The other axis of the output: columns of a GEMM, elements of a row or a message; several, as in "
            "64,1000."
        ),
    ] = "",
    threads: Annotated[str, typer.Option(help="Torch's threads; several, as in 1,2.")] = "",
    alignment: Annotated[
        str, typer.Option(help="Elements from an aligned address to where each argument starts; several, as in 0:3.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the orders found as a YAML fragment for a profile to this file.", rich_help_panel=FILES
        ),
    ] = None,
    html: Html = None,
) -> None:
    """Find in which order a function or a kernel adds, by calling it. A tree for each class of its outputs.

    The function named is imported and run; a kernel file's CUDA is compiled by nvcc and its PTX run here. Exit code 0
    all of it known; 2 for a function that cannot be called as its kind is; 3 where outputs have no fixed tree, or sums
    made again in the order found have other bits.
    """
    from moeparity.cli.outputs import outputs
    from moeparity.output.words import printable
    from moeparity.probe.run import ProbeRequest, run

    if (target is None) == (collective is None):
        raise MoeparityError(
            "kernel probe: expected MODULE:FUNCTION, a kernel file, or --collective. Give one of them."
        )
    request = ProbeRequest(target, n, kind, dtype, m, positions, threads, alignment, collective)
    with outputs({"--out": out, "--html": html}) as files:
        report, fragment, unknown = run(request, Path.cwd())
        if fragment:
            files.text("--out", lambda: fragment)
        if report is not None:
            files.document(report)
    if out is not None and report is not None and unknown:
        print(printable(f"{out} is not written: {'; '.join(unknown)}."), file=sys.stderr)
    raise typer.Exit(3 if unknown else 0)


def certify(
    target: Target,
    against: Annotated[
        str,
        typer.Option(
            metavar="NODE-OR-ORDER",
            help="An order such as 'lanes(8) | fold_hi', a launch rule such as vllm.rms_norm, a collective such as "
            "gloo.all_reduce, or with --plan the address of a node such as 'layers[0].moe.gate'.",
        ),
    ],
    n: Leaves = None,
    kind: KindOption = None,
    dtype: Dtype = None,
    accumulate: Annotated[
        str | None,
        typer.Option(help="What additions round to where the order does not say; the node's, or fp32, by default."),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="The checkpoint folder, or the recipe (its candidate), whose node is meant.")
    ] = None,
    profile: Annotated[str, typer.Option(help="With a checkpoint: the profile to bind.")] = "hf-eager",
    m: Annotated[str, typer.Option("--m", help="Rows; several, as in 1,2,4:8.")] = "",
    positions: Annotated[int | None, typer.Option(min=1, help="The other axis of the output.")] = None,
    threads: Annotated[str, typer.Option(help="Torch's threads; several, as in 1,2.")] = "",
    alignment: Annotated[str, typer.Option(help="Elements off an aligned address; several, as in 0:3.")] = "",
    html: Html = None,
) -> None:
    """Compare a function or kernel with an order or node, bit for bit.

    The sums that it is called on cancel, so that only rounding is left. The function named is imported and run; a
    kernel file's CUDA is compiled by nvcc and its PTX run here, without a GPU. Exit code 0 certified, 1 not, 2 for a
    mistake of the user.
    """
    from moeparity.cli.outputs import outputs
    from moeparity.probe.kernels.run import certify_file
    from moeparity.probe.run import ProbeRequest, read_claim, run_certify

    bound = None if plan is None else _bound(plan, profile, against)
    with outputs({"--html": html}) as files:
        answer = None if bound is None else certify_file(target, Path.cwd(), *bound, tokens=m, width=positions)
        if answer is None:
            choices = None if bound is None else {k: str(value) for k, value in bound[0].active(bound[1]).items()}
            width = "" if positions is None else str(positions)
            request = ProbeRequest(target, n, kind, dtype, m, width, threads, alignment)
            report, holds = run_certify(request, Path.cwd(), read_claim(against, accumulate, choices))
        else:
            report, holds = answer
        if report is not None:
            files.document(report)
    raise typer.Exit(0 if holds else 1)


def plans(
    target: Annotated[
        Path, typer.Argument(metavar="RECIPE|CHECKPOINT", help="Whose GEMMs: the recipe's two sides, or one profile's.")
    ],
    out: Annotated[Path, typer.Option(help="Write the plans to this file, for a side's `plans:`.")],
    profile: Annotated[str, typer.Option(help="With a checkpoint: the profile to bind.")] = "hf-eager",
    rows: Annotated[int, typer.Option(min=1, help="Ask for 1 to this many rows (tokens of a step).")] = 8192,
    workspace: Annotated[
        int, typer.Option(min=0, help="MiB beside its result that a GEMM may use; 32 is torch's on Hopper.")
    ] = 32,
) -> None:
    """Ask cuBLASLt on a GPU how it adds up a checkpoint's GEMMs.

    Nothing is computed: its heuristic answers with nine integers. A recipe's side then takes the file: `gpu: h100,
    plans: FILE` (docs/tensor-cores.md).
    """
    from moeparity.bisection.outline import outline_checkpoint, outline_recipe
    from moeparity.cli.outputs import outputs
    from moeparity.output.words import printable
    from moeparity.plan.gemm_shapes import gemm_shapes
    from moeparity.probe.cublaslt import Library, plans_file

    shapes = gemm_shapes((outline_checkpoint(target, profile) if is_folder(target) else outline_recipe(target)).plans)
    if not shapes:
        raise MoeparityError(f"kernel plans: {target} has no 16-bit GEMM without a bias, so there is nothing to ask.")
    with outputs({"--out": out}) as files:
        text = plans_file(Library(), shapes, rows, workspace << 20)
        files.text("--out", lambda: text)
    print(printable(f"{out}: plans of {len(shapes)} shapes, 1 to {rows} rows."))


def _bound(plan: Path, profile: str, address: str) -> tuple[Plan, Node]:
    """A bound plan and one of its nodes. Raises MoeparityError if it has no such node."""
    from moeparity.bisection.outline import outline_checkpoint, outline_recipe
    from moeparity.errors import did_you_mean

    outline = outline_checkpoint(plan, profile) if is_folder(plan) else outline_recipe(plan)
    bound = outline.plans[-1]
    nodes = {node.name: node for node in bound.graph.nodes}
    if address not in nodes:
        raise MoeparityError(
            f"--against {address}: {plan} has no such node.{did_you_mean(address, nodes)} `moeparity show plan` lists "
            "them; [0:4] there stands for [0], [1], [2] and [3]."
        )
    return bound, nodes[address]
