"""Options that decide numerics of which no profile states anything: each is a warning by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch.options import Implied, Option

_OFF = frozenset({"", "none", "null", "auto", "default", "false", "0", "off", "disabled", "{}", "[]", "0.0"})
"""Values that leave every such option without effect, in lower case."""
_TOGETHER_NAMES = """
max_num_seqs max_num_active_seqs max_num_batched_tokens max_num_scheduled_tokens long_prefill_token_threshold
long_prefill_token_threshold_adaptive scheduling_policy prefill_schedule_interval async_scheduling
max_cudagraph_capture_size max_running_requests max_prefill_tokens prefill_max_requests schedule_policy
schedule_conservativeness enable_dynamic_chunking cuda_graph_bs_decode cuda_graph_bs_prefill cuda_graph_max_bs_decode
cuda_graph_max_bs_prefill cuda_graph_bs cuda_graph_max_bs cudagraph_capture_sizes disable_prefill_cuda_graph
disable_decode_cuda_graph disable_cuda_graph_padding
pp_max_micro_batch_size disable_overlap_schedule prefill_decode_interval torch_compile_max_bs
use_dynamic_bsz ppo_max_token_len_per_gpu ppo_micro_batch_size ppo_micro_batch_size_per_gpu use_remove_padding
log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu
nnodes num_nodes n_gpus_per_node gpus_per_node micro_batch_size train_micro_batch_size generation_batch_size
logprob_batch_size logprob_chunk_size dynamic_batching sequence_packing make_sequence_length_divisible_by
moe_grouped_gemm
"""
_TOGETHER = frozenset(_TOGETHER_NAMES.split())
_NUMBERED = {"true": frozenset({"1"}), "false": frozenset({"0"})}


def unstated(
    says: str,
    *names: str,
    none: frozenset[str] = _OFF,
    default: Any = "none",
    role: str = "server",
    environment: bool = False,
) -> Option:
    """One such option: `says` is what it changes, `none` are the values, in lower case, that change nothing."""

    def implies(value: Any) -> Implied:
        if _plain(value) in none:
            return Implied(says="off", shows=False)
        return Implied(says="no shipped profile states it", warns=says)

    return Option(
        names=names, kind="any", default=default, implies=implies, role=role, environment=environment, quiet=True
    )


def table(
    meanings: Mapping[str, str],
    *,
    prefix: str = "",
    role: str = "server",
    environment: bool = False,
    concerns: Mapping[str, str] | None = None,
) -> tuple[Option, ...]:
    """Options as a mapping from their spellings to what they change. `concerns` says for some options, by name, what of
    a model they need to have any effect.

    There are three kinds of key. `name other_spelling = value_without_effect ...`: the option has an effect unless it
    is set to such a value. `name ! value`: it has its effect unless it is set to exactly that value, also if it is not
    set. `name unless value ...`: if nothing is set such a value counts, and any other value warns.
    """
    rows = (_row(key, says, prefix, role, environment=environment) for key, says in meanings.items())
    of = concerns or {}
    return tuple(replace(row, concerns=of.get(row.name.removeprefix(prefix), "")) for row in rows)


def details(names: str, says: str, *, prefix: str = "", role: str = "server") -> tuple[Option, ...]:
    """Options that say more of what another one warns of: shown where they are set, and no warnings of their own."""
    return tuple(
        Option(
            names=(f"{prefix}{name}",),
            kind="any",
            default="none",
            implies=lambda value: Implied(says=says, shows=_plain(value) not in _OFF),
            role=role,
            quiet=True,
        )
        for name in names.split()
    )


def groups_tokens(name: str) -> bool:
    """Whether an option of that name says which tokens, or which experts' rows, are computed together."""
    return not _TOGETHER.isdisjoint(name.removeprefix("sglang_").split("."))


def _row(key: str, says: str, prefix: str, role: str, *, environment: bool) -> Option:
    spellings, _, alike = key.partition(" unless ")
    spellings, _, values = spellings.partition(" = ")
    spellings, _, until = spellings.partition(" ! ")
    names = tuple(f"{prefix}{name}" for name in spellings.split())
    none = frozenset((alike or until).split()) | _NUMBERED.get(until, frozenset())
    none = none or _OFF.union(values.split())
    default = "by default" if until else alike.partition(" ")[0] or "none"
    return unstated(says, *names, none=none, default=default, role=role, environment=environment)


def _plain(value: Any) -> str:
    if value is None:
        return "true"
    if isinstance(value, Mapping | list | tuple) and not value:
        return ""
    return str(value).lower()
