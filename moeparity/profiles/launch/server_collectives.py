"""Which library adds up the ranks of vLLM 0.33.0 and sglang 0.5.23, by how many there are and on how many nodes."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.profiles.launch.options import Decision, Implied, LaunchSettings
from moeparity.profiles.launch.shared import FUSED_RANKS, on_cpu
from moeparity.profiles.launch.source import Unresolved

_GPUS = 8
"""Of one node of Hopper GPUs."""
_FUSED = ("vllm-allreduce-norm", "vllm-allreduce-norm-trtllm")
_OF_VLLM = (
    "vLLM 0.33.0, vllm/compilation/passes/fusion/allreduce_rms_fusion.py:104-109, vllm/distributed/"
    "device_communicators/flashinfer_all_reduce.py:166-173, all_reduce_utils.py:22-61, custom_all_reduce.py:497"
)
_INVARIANT = (
    "vLLM 0.33.0, vllm/model_executor/determinism/batch_invariant.py:1404-1421: NCCL_ALGO, one channel, NCCL_PROTO "
    "Simple; vllm/distributed/device_communicators/custom_all_reduce.py:497"
)
_OF_SGLANG = (
    "sglang 0.5.23, srt/distributed/device_communicators/custom_all_reduce_utils.py:460-467, "
    "custom_all_reduce_v2.py:589"
)
_TREE = "sglang 0.5.23, srt/arg_groups/attention_hook.py:676: NCCL_ALGO=allreduce:tree"
_CHOOSES = "NCCL chooses ring, tree or the switch by a message's bytes and the topology; what runs here is its ring"


def _node(tensor: int, others: int, nodes: int) -> int:
    """How many of a group's ranks lie on one node: `others` is over how many such groups the nodes are shared out."""
    on_each = tensor * others // nodes if nodes > 1 else _GPUS
    return min(tensor, max(on_each, 1), _GPUS)


def vllm_all_reduce(settings: LaunchSettings) -> Iterator[Decision]:
    """NCCL in place of vLLM's own kernels: on SM90 those are for 2, 4, 6 and 8 ranks of one node."""
    tensor = settings.ranks("tensor_parallel_size")
    nodes = max(settings.ranks("nnodes") // settings.ranks("data_parallel_size"), 1)
    node = _node(tensor, settings.ranks("pipeline_parallel_size"), nodes)
    is_invariant = settings.values.get("VLLM_BATCH_INVARIANT") is True
    is_off = is_invariant and settings["disable_custom_all_reduce"] is True
    if tensor == 1 or on_cpu(settings):
        return
    if tensor == node and tensor in (2, 4, 6, 8) and not is_off:
        yield from _nodes_open(settings, tensor, _OF_VLLM)
        implied = None if is_invariant else _kernels(settings, tensor)
        if implied is not None:
            yield Decision(role="server", implied=implied, source=_OF_VLLM)
        return
    where = _where(tensor, node)
    if is_invariant:
        implied = Implied(says=f"{where}: NCCL's tree adds them", sets=_tree(tensor, node), drops=_FUSED)
        yield Decision(role="server", implied=implied, source=_INVARIANT)
    else:
        yield Decision(role="server", implied=_ring(where, _FUSED), source=_OF_VLLM)


def _kernels(settings: LaunchSettings, tensor: int) -> Implied | None:
    """What the environment chooses in place of FlashInfer's kernels for NVSwitch multicast, which are those it has."""
    if settings.values.get("VLLM_ALLREDUCE_USE_FLASHINFER") is False:
        return Implied(says="no FlashInfer: vLLM's own kernels", sets={"all_reduce:collective": "vllm.custom"})
    if settings.values.get("VLLM_FLASHINFER_ALLREDUCE_BACKEND") != "trtllm" or tensor not in FUSED_RANKS:
        return None
    return Implied(
        says="FlashInfer's trtllm kernels, also where they are fused with the norm",
        overlay="vllm-allreduce-norm-trtllm",
        drops=("vllm-allreduce-norm",),
    )


def sglang_all_reduce(settings: LaunchSettings) -> Iterator[Decision]:
    """NCCL in place of SGLang's own kernels, which are for 2, 4, 6 and 8 ranks of one node."""
    tensor = settings.ranks("tp_size")
    node = _node(tensor, settings.ranks("pp_size"), settings.ranks("nnodes"))
    if tensor == 1 or settings["enable_dp_attention"] is True or settings.ranks("attn_dp_size") > 1:
        return
    on_policy = str(settings["rl_on_policy_target"]) not in ("none", "None")
    if tensor == node:
        yield from _nodes_open(settings, tensor, _OF_SGLANG)
    if settings["enable_deterministic_inference"] is True or on_policy:
        if node < tensor:
            implied = Implied(says=f"{_where(tensor, node)}: NCCL's tree adds them", sets=_tree(tensor, node))
            yield Decision(role="server", implied=implied, source=_TREE)
    elif tensor != node or tensor not in (2, 4, 6, 8):
        implied = _ring(_where(tensor, node), ("sglang-allreduce-norm",))
        yield Decision(role="server", implied=implied, source=_OF_SGLANG)


def _nodes_open(settings: LaunchSettings, tensor: int, source: str) -> Iterator[Decision]:
    """That it isn't known whether the ranks are on one node."""
    if isinstance(settings.values.get("nnodes"), Unresolved):
        warns = "they are added as on one node; over several NCCL adds them, and no kernel is fused with the norm"
        implied = Implied(says=f"{tensor} ranks on an unknown number of nodes", warns=warns)
        yield Decision(role="server", implied=implied, source=source)


def _where(tensor: int, node: int) -> str:
    return f"{tensor} ranks" if node == tensor else f"{tensor} ranks, {node} on each node"


def _tree(tensor: int, node: int) -> dict[str, str | float]:
    """NCCL's tree; across nodes it is two trees over chains of each node's ranks."""
    nodes = {"all_reduce:node": node} if node < tensor else {}
    return {"all_reduce:collective": "nccl.tree", **nodes}


def _ring(where: str, drops: tuple[str, ...]) -> Implied:
    return Implied(
        says=f"{where}: NCCL adds them, and no kernel is fused with the norm",
        sets={"all_reduce:collective": "nccl.ring"},
        drops=drops,
        warns=_CHOOSES,
    )
