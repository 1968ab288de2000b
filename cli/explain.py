"""`moeparity explain`: finds the choices that give the values in a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeparity.cli.options import Html, Json

TraceFolder = Annotated[Path, typer.Argument(metavar="TRACE", help="The folder of a trace, as `capture` writes it.")]
Checkpoint = Annotated[Path, typer.Option(help="The checkpoint folder that the program ran.")]
Profile = Annotated[str, typer.Option(help="The profile to begin with: its values are tried first.")]
NodeOption = Annotated[
    list[str] | None,
    typer.Option("--node", help="Nodes to explain, as in 'layers[*].moe.combine'; may be repeated; all that it shows."),
]
MapOption = Annotated[
    str | None, typer.Option("--map", help="Which module shows which node: a shipped map's name, or a YAML file.")
]
Dtype = Annotated[str | None, typer.Option(help="What the program ran in; the dtype of its first value by default.")]
Rank = Annotated[int, typer.Option(min=0, help="The rank whose part of the trace is read.")]
Seconds = Annotated[
    float | None,
    typer.Option(min=0, help="Search for so long; then only compare. Ctrl-C does the same at once. Exit code 3."),
]
Previous = Annotated[
    list[Path] | None,
    typer.Option(
        "--previous", help="A checkpoint of an earlier step, whose weights a node may still have; may be repeated."
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="Where no listed choice explains a node, search for orders of its sums that no file lists, for so long.",
    ),
]
ProfileOut = Annotated[
    Path | None, typer.Option(help="Write the choices as a profile whose evidence is `verified: trace`.")
]


def explain(
    trace: TraceFolder,
    checkpoint: Checkpoint,
    profile: Profile = "hf-eager",
    node: NodeOption = None,
    map_: MapOption = None,
    dtype: Dtype = None,
    rank: Rank = 0,
    seconds: Seconds = None,
    previous: Previous = None,
    budget: Budget = None,
    profile_out: ProfileOut = None,
    json: Json = None,
    html: Html = None,
) -> None:
    """Which choices give a program's recorded values, bit for bit.

    Roundings, orders, forms and faults are searched for at every node that the trace shows.

    Exit code 0 where every node is explained, 1 where no choices that were tried give a node's bits, 3 where a node
    that was named is not shown by the trace, or where the search was stopped.
    """
    from moeparity.cli.outputs import outputs
    from moeparity.cli.signals import stopping
    from moeparity.evidence.explain.explained_profile import profile_text
    from moeparity.evidence.explain.show import document
    from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
    from moeparity.progress import Stop

    request = ExplainRequest(
        trace=trace,
        checkpoint=checkpoint,
        profile=profile,
        nodes=tuple(node or ()),
        map_name=map_,
        dtype=dtype,
        rank=rank,
        previous=tuple(previous or ()),
        budget=budget,
    )
    with outputs({"--profile-out": profile_out, "--json": json, "--html": html}, unprinted=("--profile-out",)) as files:
        stop = Stop() if seconds is None else Stop(seconds=seconds)
        with files.progress() as progress, stopping(stop):
            result = explain_trace(request, progress, stop)
        files.text("--profile-out", lambda: profile_text(result, profile_out.stem if profile_out else ""))
        files.report(result, document(result))
    raise typer.Exit(result.exit_code)
