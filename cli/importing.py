"""`moeparity import`: turns what other tools recorded into a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_files(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="sglang, vllm, transformers or msprobe.")],
    path: Annotated[Path, typer.Argument(help="What that tool wrote: its folder, or one file.")],
    out: Annotated[Path, typer.Option(help="The folder of the trace; it must not be there yet.")],
) -> None:
    """Make a trace of what another tool recorded.

    SGLang's dumper, vLLM's extract_hidden_states, transformers' debugger and msprobe. Nothing in the files is run.
    """
    from moeparity.cli.render import console
    from moeparity.errors import counted, display_path
    from moeparity.evidence.importers.registry import import_trace
    from moeparity.evidence.trace.reader import open_trace

    import_trace(kind, path, out)
    parts = [rank.contents for rank in open_trace(out).ranks]
    calls, value_count = (sum(counts) for counts in zip(*((len(p.calls), len(p.values)) for p in parts), strict=True))
    ranks = f"{counted(len(parts), 'rank')}, " if len(parts) > 1 else ""
    console().print(f"{display_path(out)}: {ranks}{counted(calls, 'call')}, {counted(value_count, 'value')}")
    for note in dict.fromkeys(note for part in parts for note in part.notes):
        console().print(f"note: {note}", markup=False)
