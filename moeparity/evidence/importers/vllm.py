"""vLLM's `extract_hidden_states`: a safetensors file for each request.

Written by `ExampleHiddenStatesConnector._write_tensors` (vLLM 0.33.0,
distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py): `hidden_states` [tokens, layers, hidden]
and `token_ids` [tokens]; a `.lock` beside it is held while it is written.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

from moeparity.errors import TraceError, Where
from moeparity.evidence.importers.assembled import Event, write_trace
from moeparity.evidence.importers.files import read_safetensors
from moeparity.evidence.trace.records import Head
from moeparity.paths import is_file

UNSEEN = (
    "Of vLLM only the hidden states of the chosen layers are known, as hidden_states.0, .1 ... in their order.",
    "The files do not say which layers these are: eagle_aux_hidden_state_layer_ids does.",
)


def import_vllm(path: Path, out: Path) -> None:
    """A file, or a folder of them, each request one forward pass. Raises TraceError."""
    files = [path] if is_file(path) else sorted(path.glob("*.safetensors"))
    if not files:
        raise TraceError(f"{Where(path)}: no *.safetensors file; expected what vLLM's extract_hidden_states wrote.")
    events = [event for number, file in enumerate(files) for event in _events(file, number)]
    write_trace(out, Head(made_by="vLLM extract_hidden_states", levels=("module",), unseen=UNSEEN), events)


def _events(file: Path, number: int) -> Iterator[Event]:
    _refuse_unfinished(file)
    tensors = read_safetensors(file)
    states, ids = tensors.get("hidden_states"), tensors.get("token_ids")
    if states is None or ids is None or states.dim() != 3 or ids.dim() != 1 or len(states) != len(ids):
        raise TraceError(
            f"{Where(file)}: expected hidden_states [tokens, layers, hidden] and token_ids [tokens], as vLLM's "
            f"ExampleHiddenStatesConnector writes them; it holds {', '.join(tensors) or 'nothing'}."
        )
    first = number * (states.shape[1] + 2)
    last = first + states.shape[1] + 1
    yield Event(level="module", name=file.stem, path="", first=first, last=last, inputs={"input_ids": ids})
    for layer in range(states.shape[1]):
        place = first + 1 + layer
        path = f"hidden_states.{layer}"
        state = states[:, layer].contiguous()
        yield Event(level="module", name="hidden_states", path=path, first=place, last=place, outputs={"0": state})


def _refuse_unfinished(file: Path) -> None:
    lock = file.with_name(f"{file.name}.lock")
    if not is_file(lock):
        return
    with lock.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TraceError(f"{Where(file)}: vLLM is still writing it. Try again when the request is done.") from None
