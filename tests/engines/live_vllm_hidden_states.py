"""vLLM's own writer of hidden states: from a cache in blocks to the file; run by live_vllm_modules.

What a scheduler and a GPU give is put in its place: the cache and the request's blocks, and streams and events that
have nothing to wait for. Locks, slots and files are the writer's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor


def _empty_like(empty_like: Any, tensor: Tensor, *, pin_memory: bool, **words: Any) -> Tensor:
    del pin_memory  # there is no GPU that would copy to it
    result: Tensor = empty_like(tensor, **words)
    return result


@contextlib.contextmanager
def _without_gpu() -> Iterator[None]:
    streams = patch.multiple(torch.cuda, Stream=MagicMock(), Event=MagicMock(), stream=contextlib.nullcontext)
    with streams, patch.object(torch, "empty_like", partial(_empty_like, torch.empty_like)):
        yield


def write(folder: str, states: Tensor, ids: Tensor, unfinished: str) -> dict[str, Tensor]:
    """A request of ids [T] with states [T, layers, hidden]; of another, `unfinished`, the lock alone."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as module

    across, blocks = 4, [3, 0, 2]
    cache = states.new_zeros(5, states.shape[1], across, states.shape[2])
    for token, state in enumerate(states):
        cache[blocks[token // across], :, token % across] = state
    connector = module.ExampleHiddenStatesConnector.__new__(module.ExampleHiddenStatesConnector)
    request = {
        "_kv_cache": cache,
        "_block_size": across,
        "_is_tp_rank_zero": True,
        "use_lock": True,
        "_copy_stream": None,
    }
    empty: dict[str, Any] = {"_lock_fds": {}, "_req_futures": {}, "_req_copy_events": {}}
    for name, value in {**request, **empty, "_executor": ThreadPoolExecutor(1)}.items():
        setattr(connector, name, value)
    files = {name: str(Path(folder) / f"{name}.safetensors") for name in ("cmpl-0", unfinished)}
    connector.bind_connector_metadata(module.ExampleHiddenStatesConnectorMetadata(new_req_filenames=files))
    with _without_gpu():
        connector.wait_for_save()
        connector._submit_async_write(module.PendingSave("cmpl-0", files["cmpl-0"], ids, blocks))
        connector._executor.shutdown()
    return module.load_hidden_states(files["cmpl-0"])
