"""A real vLLM on a CPU whose weights are updated in its worker, as `python vllm_census.py CASE ANSWER`.

CASE holds `folder` and `updated`, two checkpoints, `path`, what is put in front of Python's path (this project), and
`engine`, arguments of `LLM`. Around each of these, in turn, censuses are taken by `collective_rpc`:
    `load`: the worker's model loads the new weights by its own loader;
    `reload`: the worker reloads the first ones, by `reload_weights`;
    `by data`: the new values are given to kv_b_proj as `param.data = value`, as some trainers' extensions do;
    `copies`: what older versions held in place of W_UV, a copy, is planted, then the first weights are loaded.
ANSWER holds of each the outcomes by path (outcome, sources), and how many entries moved, by kind.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

ATTENTION = "model.layers.0.self_attn.mla_attn.mla_attn"


def weights(folder: str) -> Any:
    """Names and tensors of a checkpoint."""
    from safetensors.torch import load_file

    return load_file(Path(folder) / "model.safetensors").items()


def load(worker: Any, folder: str) -> None:
    """As `load_weights` of a worker's extension does."""
    worker.model_runner.model.load_weights(iter(weights(folder)))


def reload(worker: Any, folder: str) -> None:
    """By vLLM's own way for new weights."""
    worker.model_runner.reload_weights(weights_iterator=iter(weights(folder)))


def by_data(worker: Any, folder: str) -> None:
    """A parameter is given other memory."""
    parameter = worker.model_runner.model.get_submodule(ATTENTION).kv_b_proj.weight
    parameter.data = dict(weights(folder))["model.layers.0.self_attn.kv_b_proj.weight"].clone()


def copies(worker: Any, folder: str) -> None:
    """New weights, where nobody makes W_UV's copy anew."""
    load(worker, folder)


def plant(worker: Any) -> None:
    """W_UV and W_UK_T as tensors of their own that nobody registered."""
    attention = worker.model_runner.model.get_submodule(ATTENTION)
    for name in ("W_UV", "W_UK_T"):
        tensor = getattr(attention, name).detach().contiguous().clone()
        delattr(attention, name)
        setattr(attention, name, tensor)


def dropped(worker: Any) -> list[str]:
    """Weights of which vLLM keeps a packed copy alone, as on CPUs with AVX-512: nothing can be loaded into them."""
    return [name for name, parameter in worker.model_runner.model.named_parameters() if not parameter.numel()]


def observed(worker: Any, act: Any, folder: str) -> dict[str, Any]:
    """What became of tensors around an update."""
    from moeparity.evidence.census.census import census
    from moeparity.evidence.census.follow import followed

    model = worker.model_runner.model
    before = census([model])
    act(worker, folder)
    after = census([model], before)
    pairs = [(old, after.entries[path]) for path, old in before.entries.items() if path in after.entries]
    return {
        "outcomes": {each.path: (each.outcome, each.sources) for each in followed(before, after)},
        "moved": {old.path: old.kind for old, new in pairs if old.address != new.address},
        "kinds": {old.path: old.kind for old, _ in pairs},
    }


def main(case_file: str, answer_file: str) -> None:
    case = torch.load(case_file)
    sys.path[:0] = case["path"]
    from vllm import LLM

    llm = LLM(
        model=case["folder"], skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16", disable_log_stats=True,
        distributed_executor_backend="uni", **case["engine"],
    )  # fmt: skip
    first, updated = case["folder"], case["updated"]
    (names,) = llm.collective_rpc(dropped)
    if names:
        torch.save({"dropped": names}, answer_file)
        return
    answers = {}
    for name, act, folder in (("load", load, updated), ("reload", reload, first), ("by data", by_data, updated)):
        (answers[name],) = llm.collective_rpc(observed, args=(act, folder))
    llm.collective_rpc(reload, args=(first,))
    llm.collective_rpc(plant)
    (answers["copies"],) = llm.collective_rpc(observed, args=(copies, updated))
    torch.save(answers, answer_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
