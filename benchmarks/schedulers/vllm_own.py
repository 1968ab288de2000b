"""vLLM's own scheduler, asked for its steps without a model, a GPU or a build."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import torch
from vllm.config import SchedulerConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from moeparity.plan.schedule.token_grid import TokenGrid

Steps = list[list[tuple[int, ...]]]
"""Of each step (sequence, first, last + 1)."""

STOOD_IN: Final = (
    "xgrammar",
    "tvm_ffi",
    "outlines",
    "llguidance",
    "lmformatenforcer",
    "cv2",
    "mistral_common",
    "numba",
)
"""Modules that vLLM imports and its scheduler does not use."""
BLOCKS: Final = 10_000
LONGEST: Final = 4096
UNSEEN: Final = 999
"""A sampled token that no sequence has: the one behind a sequence's last."""


def own_steps(grid: TokenGrid, arrivals: Sequence[int], budget: int, most: int, block: int | None) -> Steps:
    """The steps that it makes of these sequences; each request ends with its last token."""
    engine = _Own(grid, budget, most, block)
    waiting = sorted(range(grid.sequences), key=lambda sequence: arrivals[sequence])
    steps: Steps = []
    clock = 0
    while waiting or engine.scheduler.has_unfinished_requests():
        while waiting and arrivals[waiting[0]] <= clock:
            engine.add(waiting.pop(0))
        step = engine.step()
        steps += [step] if step else []
        clock += 1
    return steps


class _Own:
    """One scheduler at work on the sequences of a grid."""

    def __init__(self, grid: TokenGrid, budget: int, most: int, block: int | None) -> None:

        init_none_hash(sha256)
        self.grid = grid
        self.hasher = get_request_block_hasher(block or 4, sha256)
        self.scheduler = _scheduler(budget, most, block)
        self.requests: dict[str, Any] = {}

    def add(self, sequence: int) -> None:
        """A request with the sequence's prompt, which ends when the sequence does."""
        first, last = self.grid.spans[sequence]
        prompt = self.grid.prompts[sequence]
        assert self.grid.ids is not None
        request = Request(
            request_id=str(sequence),
            prompt_token_ids=list(self.grid.ids[sequence][first : first + prompt]),
            sampling_params=SamplingParams(max_tokens=max(last - first - prompt, 1), ignore_eos=True),
            pooling_params=None,
            block_hasher=self.hasher,
        )
        self.requests[request.request_id] = request
        self.scheduler.add_request(request)

    def step(self) -> list[tuple[int, ...]]:
        """What it schedules next; then it is told what was sampled."""
        planned = self.scheduler.schedule()
        starts = {new.req_id: new.num_computed_tokens for new in planned.scheduled_new_reqs}
        cached = planned.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        names = list(planned.num_scheduled_tokens)
        if not names:
            return []
        step: list[tuple[int, ...]] = [
            (int(name), starts[name], starts[name] + planned.num_scheduled_tokens[name]) for name in names
        ]
        sampled = [self._sampled(name) for name in names]
        index = {name: place for place, name in enumerate(names)}
        output = ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=sampled)
        self.scheduler.update_from_output(planned, output)
        return step

    def _sampled(self, name: str) -> list[int]:
        """The next token of a request whose known tokens are all computed."""
        request, (first, last) = self.requests[name], self.grid.spans[int(name)]
        if request.num_computed_tokens < request.num_tokens:
            return []
        column = first + request.num_tokens
        assert self.grid.ids is not None
        return [self.grid.ids[int(name)][column] if column < last else UNSEEN]


def _scheduler(budget: int, most: int, block: int | None) -> Any:
    """Its `Scheduler` over a cache of one layer, with everything off that is not scheduling."""
    spec = FullAttentionSpec(block_size=block or 4, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    return Scheduler(
        vllm_config=_config(budget, most, block),
        kv_cache_config=KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups),
        structured_output_manager=SimpleNamespace(accept_tokens=lambda *_, **__: True, should_advance=lambda _: False),
        block_size=block or 4,
        log_stats=False,
    )


def _config(budget: int, most: int, block: int | None) -> SimpleNamespace:

    off: dict[str, Any] = dict.fromkeys(
        ("lora_config", "kv_events_config", "kv_transfer_config", "ec_transfer_config", "speculative_config")
    )
    counts = ("num_speculative_tokens", "num_lookahead_tokens", "num_prefill_lookahead_tokens")
    flags = ("uses_mrope", "is_encoder_decoder", "is_diffusion", "supports_multimodal_inputs", "return_sampling_mask")
    ranks = ("decode_context_parallel_size", "prefill_context_parallel_size", "pipeline_parallel_size")
    return SimpleNamespace(
        **off,
        **dict.fromkeys((*counts, "num_hash_lookahead_tokens"), 0),
        scheduler_config=SchedulerConfig(
            max_num_seqs=most,
            max_num_batched_tokens=budget,
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        cache_config=SimpleNamespace(
            enable_prefix_caching=block is not None,
            num_gpu_blocks=BLOCKS,
            enable_mamba_shared_prefix_checkpoint=False,
            mamba_cache_mode="none",
        ),
        model_config=SimpleNamespace(
            **dict.fromkeys((*flags, "enable_return_routed_experts"), False),
            max_model_len=LONGEST,
            runner_type="generate",
        ),
        parallel_config=SimpleNamespace(**dict.fromkeys((*ranks, "data_parallel_size"), 1), data_parallel_index=0),
        observability_config=SimpleNamespace(
            per_request_spec_decode_metrics="none", kv_cache_metrics=False, enable_mfu_metrics=False
        ),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        is_mm_encoder_only=False,
        use_v2_model_runner=False,
        max_in_flight_tokens=budget,
        max_concurrent_batches=1,
    )
