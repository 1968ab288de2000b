"""Writes tests/logs/fixtures with the producers' own code, one producer per call:

    PYTHONPATH=SOURCE[:SMALL_DEPENDENCIES] python -m tests.logs.make_fixtures PRODUCER

SOURCE is the producer's source tree: a checkout at the commit that `source` of its format names, or an unpacked wheel.
What these modules import and do not need here (trackers, ray) is replaced by stand-ins; of SGLang's tokenizer manager
only the methods that put log-probabilities into a response are run, since the module needs a GPU's packages.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.logs import own_files
from tests.logs.truth import STEP, TRUTHS, Truth

FIXTURES = Path(__file__).parent / "fixtures"
STAND_INS = {
    "nemo-rl": ("mlflow", "ray", "swanlab", "wandb", "torch.utils.tensorboard", "prometheus_client", "decord", "hydra"),
    "prime-rl": ("wandb", "pydantic_config"),
    "slime": ("httpx",),
}


class _Silent:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (_Silent,), {})

    def __or__(cls, other: Any) -> Any:
        return cls


class _StandIn(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (_Silent,), {})


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        wanted = name in self._names or name.split(".", 1)[0] in self._names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _place(*parts: str) -> Path:
    path = FIXTURES.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _padded(values: list[Any], width: int, fill: Any) -> list[Any]:
    return [fill if math.isnan(value) else value for value in values] + [fill] * (width - len(values))


def nemo_rl() -> None:
    """One batch, padded to its longest sequence; what is not generated holds 0."""
    logger = importlib.import_module("nemo_rl.utils.logger").Logger
    width = max(len(truth.ids) for truth in TRUTHS) + 2

    def block(key: str, fill: Any) -> list[list[Any]]:
        return torch.tensor([_padded(getattr(truth, key), width, fill) for truth in TRUTHS]).tolist()

    batch = {
        "agent_ref": [{"type": "agent", "name": "maths"} for _ in TRUTHS],
        "content": [["a prompt", "an answer"] for _ in TRUTHS],
        "rewards": [1.0 for _ in TRUTHS],
        "input_lengths": [len(truth.ids) for truth in TRUTHS],
        "token_ids": block("ids", 0),
        "token_loss_mask": torch.tensor([_padded(truth.mask, width, False) for truth in TRUTHS]).long().tolist(),
        "sample_loss_mask": torch.ones(len(TRUTHS)).tolist(),
        "advantages": [[0.5] * width for _ in TRUTHS],
        "generation_logprobs": block("rollout", 0.0),
        "prev_logprobs": block("trainer", 0.0),
    }
    folder = _place("nemo-rl", "train_data_step7.jsonl").parent
    logger.log_batched_dict_as_jsonl(SimpleNamespace(base_log_dir=str(folder)), batch, f"train_data_step{STEP}.jsonl")


def prime_rl() -> None:
    """The sequences packed into one micro-batch, with padding behind."""
    module = importlib.import_module("prime_rl.trainer.rl.token_export")
    lengths = [len(truth.ids) for truth in TRUTHS]
    padding = 5

    def packed(key: str, fill: Any) -> torch.Tensor:
        flat = [value for truth in TRUTHS for value in _padded(getattr(truth, key), len(truth.ids), fill)]
        return torch.tensor([*flat, *[fill] * padding])[None]

    names = ["maths"] * sum(lengths) + [""] * padding
    size = len(names)
    batch = {
        "input_ids": packed("ids", 0),
        "position_ids": torch.arange(size)[None],
        "loss_mask": packed("mask", False),
        "advantages": torch.full((1, size), 0.5),
        "inference_logprobs": packed("rollout", 0.0),
        "env_names": names,
    }
    output = {"logprobs": packed("trainer", -10.0), "entropy": torch.full((1, size), 1.25)}
    exporter = module.TokenExporter(_place("prime-rl", "token_exports").parent, 0)
    exporter.export(STEP, 0, batch, output, [*lengths, padding], loss_config=None)
    exporter.mark_stable()


def _samples(sample: Any) -> list[Any]:
    return [
        sample(
            index=number,
            tokens=list(truth.ids),
            response="an answer",
            response_length=len(truth.ids) - truth.prompt,
            loss_mask=[int(in_mask) for in_mask in truth.mask[truth.response]],
            rollout_log_probs=_padded(truth.rollout[truth.response], 0, 0.0),
            weight_versions=sorted({str(version) for version in truth.versions[truth.response]}),
            status=sample.Status.COMPLETED,
        )
        for number, truth in enumerate(TRUTHS)
    ]


def _train_columns() -> dict[str, Any]:
    def responses(key: str) -> list[torch.Tensor]:
        return [torch.tensor(getattr(truth, key)[truth.response]) for truth in TRUTHS]

    return {
        "tokens": [torch.tensor(truth.ids) for truth in TRUTHS],
        "response_lengths": [len(truth.ids) - truth.prompt for truth in TRUTHS],
        "total_lengths": [len(truth.ids) for truth in TRUTHS],
        "loss_masks": [mask.int() for mask in responses("mask")],
        "sample_indices": list(range(len(TRUTHS))),
        "log_probs": [values.float() for values in responses("trainer")],
        "rollout_log_probs": [values.float() for values in responses("rollout")],
        "raw_reward": [1.0 for _ in TRUTHS],
    }


def slime() -> None:
    """A rollout's samples, and the trainer's as one data-parallel rank gathers them."""
    rollout = importlib.import_module("slime.observability.rollout_data_utils")
    train = importlib.import_module("slime.observability.train_data_utils")
    sample = importlib.import_module("slime.utils.types").Sample
    rollout.save_debug_rollout_data(
        str(_place("slime", "rollout_{rollout_id}.pt")), _samples(sample), rollout_id=STEP, evaluation=False
    )
    shard = {"rank": 0, "data_parallel_rank": 0, "rollout_data": _train_columns()}
    payload = train._build_dump_payload([shard], rollout_id=STEP, writer_rank=0)
    torch.save(payload, _place("slime", f"train_{STEP}.pt"))


def miles() -> None:
    """The same of miles, and the table of its dashboard."""
    rollout = importlib.import_module("miles.ray.rollout.debug_data")
    train = importlib.import_module("miles.utils.train_dump_utils")
    sample = importlib.import_module("miles.utils.types").Sample
    args = SimpleNamespace(
        save_debug_rollout_data=str(_place("miles", "rollout_data", "{rollout_id}.pt")),
        save_debug_trajectory_data=None,
        save_debug_train_data=str(_place("miles", "train_data", "{rollout_id}_{rank}.pt")),
        qkv_format="thd",
    )
    rollout.save_debug_rollout_data(args, _samples(sample), STEP, evaluation=False)
    train.save_debug_train_data_for_rank(args, rollout_id=STEP, rollout_data=_train_columns(), rank=0)


def vllm() -> None:
    """Outputs of the engine as docs/logs.md writes them, and the responses of its OpenAI-style server."""
    outputs, logprobs = (importlib.import_module(f"vllm.{name}") for name in ("outputs", "logprobs"))

    def position(token: int, value: float) -> Any:
        return None if math.isnan(value) else {token: logprobs.Logprob(value, 1, "x")}

    def spans(truth: Truth) -> list[Any]:
        version_list = truth.versions[truth.response]
        return [
            outputs.WeightVersionSpan(
                version=str(each),
                start=version_list.index(each),
                end=len(version_list) - version_list[::-1].index(each),
            )
            for each in sorted(set(version_list))
        ]

    def sampled(number: int, truth: Truth) -> Any:
        ids, values = truth.ids[truth.response], truth.rollout[truth.response]
        positions = [position(token, value) for token, value in zip(ids, values, strict=True)]
        completion = outputs.CompletionOutput(0, "x" * len(ids), ids, sum(values), positions, finish_reason="length")
        completion.weight_versions = spans(truth)
        return outputs.RequestOutput(f"r{number}", "x", truth.ids[: truth.prompt], None, [completion], finished=True)

    def scored(number: int, truth: Truth) -> Any:
        values = [float("nan"), *([-2.0] * (truth.prompt - 1)), *truth.trainer[truth.response]]
        positions = [position(token, value) for token, value in zip(truth.ids, values, strict=True)]
        completion = outputs.CompletionOutput(0, "x", [1], -1.0, [position(1, -1.0)], finish_reason="length")
        return outputs.RequestOutput(f"r{number}", "x", truth.ids, positions, [completion], finished=True)

    def written(output: Any) -> str:
        return json.dumps(vars(output), default=lambda o: o.tolist() if hasattr(o, "tolist") else dataclasses.asdict(o))

    for name, make in (("outputs", sampled), ("scored", scored)):
        lines = [written(make(number, truth)) for number, truth in enumerate(TRUTHS)]
        _place("vllm", f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    _openai(position)


def _openai(position: Callable[[int, float], Any]) -> None:
    root = "vllm.entrypoints.openai"
    completion, chat = (
        importlib.import_module(f"{root}.{name}.protocol") for name in ("completion", "chat_completion")
    )

    def usage(truth: Truth, generated: int) -> dict[str, int]:
        return {"prompt_tokens": truth.prompt, "completion_tokens": generated, "total_tokens": truth.prompt + generated}

    def completed(number: int, truth: Truth) -> Any:
        ids, values = truth.ids[truth.response], truth.rollout[truth.response]
        listed = completion.CompletionLogProbs(tokens=["x"] * len(ids), token_logprobs=values)
        choice = completion.CompletionResponseChoice(
            index=0, text="x", logprobs=listed, token_ids=ids, prompt_token_ids=truth.ids[: truth.prompt]
        )
        return completion.CompletionResponse(
            id=f"r{number}", created=0, model="m", choices=[choice], usage=usage(truth, len(ids))
        )

    def chatted(number: int, truth: Truth) -> Any:
        pairs = zip(truth.ids[truth.response], truth.rollout[truth.response], strict=True)
        content = [chat.ChatCompletionLogProbsContent(token=f"token_id:{token}", logprob=lp) for token, lp in pairs]
        choice = chat.ChatCompletionResponseChoice(
            index=0,
            message=chat.ChatMessage(role="assistant", content="x"),
            logprobs=chat.ChatCompletionLogProbs(content=content),
        )
        return chat.ChatCompletionResponse(
            id=f"r{number}", created=0, model="m", choices=[choice], usage=usage(truth, len(content))
        )

    def scored(number: int, truth: Truth) -> Any:
        values = [float("nan"), *([-2.0] * (truth.prompt - 1)), *truth.trainer[truth.response]]
        positions = [position(token, value) for token, value in zip(truth.ids, values, strict=True)]
        choice = completion.CompletionResponseChoice(
            index=0, text="x", prompt_logprobs=positions, prompt_token_ids=truth.ids, token_ids=[1]
        )
        return completion.CompletionResponse(
            id=f"r{number}", created=0, model="m", choices=[choice], usage=usage(truth, 1)
        )

    for name, make in (("completions", completed), ("chat", chatted), ("scored", scored)):
        lines = [make(number, truth).model_dump_json() for number, truth in enumerate(TRUTHS)]
        _place("openai", f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def sglang() -> None:
    """Responses of /generate: generated tokens, and a scored prompt."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    source = Path(spec.submodule_search_locations[0]) / "srt/managers/tokenizer_manager.py"
    manager = next(n for n in ast.parse(source.read_text()).body if getattr(n, "name", "") == "TokenizerManager")
    assert isinstance(manager, ast.ClassDef)
    wanted = {"add_logprob_to_meta_info", "detokenize_logprob_tokens"}
    manager.bases, manager.body = [], [node for node in manager.body if getattr(node, "name", "") in wanted]
    header = ast.parse("from __future__ import annotations").body
    namespace: dict[str, Any] = {}
    exec(compile(ast.Module([*header, manager], []), str(source), "exec"), namespace)  # noqa: S102
    put = namespace["TokenizerManager"]().add_logprob_to_meta_info

    def response(number: int, prompt: int, generated: tuple[Any, Any], scored: tuple[Any, Any]) -> dict[str, Any]:
        meta = {
            "id": f"uuid{number}",
            "finish_reason": {"type": "length"},
            "prompt_tokens": prompt,
            "weight_version": "6",
        }
        state = SimpleNamespace(
            input_token_logprobs=[],
            output_token_logprobs=[],
            output_token_logprobs_val=generated[0],
            output_token_logprobs_idx=generated[1],
            input_token_logprobs_val=scored[0],
            input_token_logprobs_idx=scored[1],
        )
        put(meta, state, 0, None, False, True)
        meta["completion_tokens"] = len(generated[0])
        # `id` is the user's: the engine's own is new for every request.
        return {"id": f"r{number}", "text": "x", "output_ids": generated[1], "meta_info": meta}

    sampled, scored = [], []
    for number, truth in enumerate(TRUTHS):
        tokens_sampled = (truth.rollout[truth.response], truth.ids[truth.response])
        before = ([None, *[-2.0] * (truth.prompt - 1)], truth.ids[: truth.prompt])
        sampled.append(response(number, truth.prompt, tokens_sampled, before))
        whole = ([*before[0], *truth.trainer[truth.response]], truth.ids)
        scored.append(response(number, len(truth.ids), ([-1.0], [1]), whole))
    for name, records in (("generate", sampled), ("scored", scored)):
        _place("sglang", f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def moeparity() -> None:
    """moeparity's own format in its three containers."""
    own_files.write_jsonl(_place("moeparity", "log.jsonl"))
    own_files.write_parquet(_place("moeparity", "log.parquet"))
    own_files.write_safetensors(_place("moeparity", "log.safetensors"))


PRODUCERS: dict[str, Callable[[], None]] = {
    "nemo-rl": nemo_rl,
    "prime-rl": prime_rl,
    "slime": slime,
    "miles": miles,
    "vllm": vllm,
    "sglang": sglang,
    "moeparity": moeparity,
}

if __name__ == "__main__":
    sys.meta_path.insert(0, _StandIns(STAND_INS.get(sys.argv[1], ())))
    PRODUCERS[sys.argv[1]]()
