"""What vLLM 0.33.0 and sglang 0.5.23 decide from several options and from the model, with the place that decides it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moeparity.profiles.launch.options import Decision, Implied, Settings

DEEPEP = ("deepep-normal", "deepep-low-latency", "deepep-elastic")
_FUSED_NORM = ("vllm-allreduce-norm", "vllm-allreduce-norm-trtllm")
_OF_VLLM = "vLLM 0.33.0, "
_ALL_TO_ALL = f"{_OF_VLLM}vllm/model_executor/layers/fused_moe/config.py:1035 use_all2all_kernels"

_FUSED_NAMES = """
DeepseekV3ForCausalLM DeepseekV32ForCausalLM DeepseekV4ForCausalLM GptOssForCausalLM GlmMoeDsaForCausalLM
Glm4MoeForCausalLM Glm4MoeLiteForCausalLM MistralLarge3ForCausalLM Qwen3MoeForCausalLM
Qwen3VLMoeForConditionalGeneration Qwen3NextForCausalLM Qwen4ExpForConditionalGeneration
KimiK25ForConditionalGeneration Qwen3_5MoeForConditionalGeneration InternS2PreviewForConditionalGeneration
Qwen3_5ForConditionalGeneration NemotronHForCausalLM NemotronHPuzzleForCausalLM NemotronH_Omni_Reasoning_V3
"""
_FUSED_ARCHITECTURES = frozenset(_FUSED_NAMES.split())
"""Models for which SGLang turns its fused all-reduce on by itself."""
_FUSED_SOURCE = "sglang 0.5.23, srt/arg_groups/overrides.py:929-1001 _flashinfer_allreduce_fusion_auto_enable"
_SCATTERED = (
    "ranks' sums of routed rows are reduce-scattered by NCCL to the groups that attend apart; what runs here is the "
    "all-reduce of the rows of all groups"
)
_DISPATCH = "vllm/model_executor/layers/fused_moe/runner/moe_runner.py _maybe_dispatch"
_SPANNING_NAMES = """
deepep mooncake nixl ascend_fuseep flashinfer flashinfer_megamoe mori pplx deepep_v2 megamoe
"""
_SPANNING = frozenset(_SPANNING_NAMES.split())
"""SGLang's dispatchers that spread the experts over all ranks."""


def vllm_experts(settings: Settings) -> Iterator[Decision]:
    """Over how many ranks vLLM's experts lie, and whether rows are sent to them."""
    tensor, data = settings.ranks("tensor_parallel_size"), settings.ranks("data_parallel_size")
    if settings["enable_expert_parallel"] is True:
        yield _vllm_expert_parallel(settings, tensor, data)
    elif data > 1 and settings.model.is_dense is not True:
        says = f"{data} groups of {tensor} ranks attend apart; experts are cut over all {tensor * data}"
        yield Decision(
            role="server",
            implied=Implied(says=says, placement=_apart(data, "experts"), warns=_SCATTERED),
            source=f"{_OF_VLLM}vllm/config/parallel.py data_parallel_size; {_DISPATCH}",
        )


def _vllm_expert_parallel(settings: Settings, tensor: int, data: int) -> Decision:
    backend = settings["all2all_backend"]
    placement: dict[str, int | bool | str] = {"expert": tensor * data}
    if data == 1:
        says = f"experts lie on the {tensor} ranks of the tensor-parallel group, whose sums are all-reduced"
        if "all2all_backend" in settings.stated:
            says += f"; {backend} has no effect without data parallel"
        return Decision(
            role="server", implied=Implied(says=says, placement=placement, drops=DEEPEP), source=_ALL_TO_ALL
        )
    warns = _SCATTERED if backend in ("allgather_reducescatter", "naive") else ""
    says = f"experts lie on {tensor * data} ranks: {data} groups of {tensor}, which attend apart"
    placement = {**placement, **_apart(data, "experts")}
    return Decision(
        role="server",
        implied=Implied(says=says, placement=placement, warns=warns),
        source=f"{_ALL_TO_ALL}; {_DISPATCH}",
    )


def _apart(groups: int, gathered: str) -> dict[str, int | bool | str]:
    """The placement of groups of ranks that attend apart."""
    return {"attention": groups, "gathered": gathered}


def vllm_compilation(settings: Settings) -> Iterator[Decision]:
    """What a compilation config says of the fused all-reduce, and of compiling at all."""
    config = settings["compilation_config"]
    if not isinstance(config, dict) or not config:
        return
    source = f"{_OF_VLLM}vllm/config/compilation.py"
    passes = config.get("pass_config")
    if isinstance(passes, dict) and passes.get("fuse_allreduce_rms") is False:
        says = "all-reduce and norm are separate kernels"
        yield Decision(role="server", implied=Implied(says=says, drops=_FUSED_NORM), source=source)
    if str(config.get("mode", config.get("level", ""))).upper() in ("0", "NONE"):
        eager = Implied(says="not compiled: kernels in C in place of Inductor's", overlay="vllm-eager")
        yield Decision(role="server", implied=eager, source=source)
    supported = {
        "mode",
        "level",
        "pass_config",
        "cudagraph_mode",
        "cudagraph_capture_sizes",
        "max_cudagraph_capture_size",
    }
    others = sorted({*config} - supported) + sorted(
        f"pass_config.{name}" for name in (passes if isinstance(passes, dict) else ()) if name != "fuse_allreduce_rms"
    )
    if others:
        warns = f"{', '.join(map(str, others))} of the compilation config: which kernels are compiled and fused"
        yield Decision(role="server", implied=Implied(says="not resolved", warns=warns), source=source)


def sglang_placement(settings: Settings) -> Iterator[Decision]:
    """Over how many ranks SGLang cuts attention and experts."""
    tensor, expert = settings.ranks("tp_size"), settings.ranks("ep_size")
    backend = str(settings["moe_a2a_backend"])
    attention = tensor // _attention_groups(settings)
    if backend in _SPANNING and tensor > 1:
        expert = tensor
        says = f"{backend} spreads the experts over all {tensor} ranks"
        yield _decided(says, "overrides.py:1611-1619 _a2a_ep_size", placement={"expert": expert})
    if attention != tensor:
        says = f"under DP attention, attention is cut over tp / dp: {tensor} / {tensor // max(attention, 1)}"
        gathered = "experts" if backend in _SPANNING else "mlp"
        placement = {"tensor": attention, **_apart(tensor // max(attention, 1), gathered)}
        yield _decided(says, "dp_attention.py compute_dp_attention_world_info", placement, _between(settings, gathered))
    if tensor > 1 and expert not in (1, tensor) and settings.model.is_dense is not True:
        each = tensor // expert
        warns = (
            f"experts lie on {expert} groups of ranks, each expert cut over {each}, and attention over {attention}: "
            "a placement cannot say that"
        )
        yield _decided("each expert is cut over tp / ep ranks", "parallel_hook.py:170-186", warns=warns)


def _between(settings: Settings, gathered: str) -> str:
    """What no placement says of rows between groups that attend apart and what takes those of all."""
    apart = settings["enable_dp_lm_head"] is True
    head = ""
    if apart != (gathered == "experts"):
        head = f"; the head takes {'its own' if apart else 'the rows of all groups'}, which is not what runs here"
    return (
        f"rows are gathered and scattered between attention's ranks and the experts': their sums are not stated{head}"
    )


def _decided(says: str, source: str, placement: dict[str, int | bool | str] | None = None, warns: str = "") -> Decision:
    implied = Implied(says=says, placement=placement or {}, warns=warns)
    return Decision(role="server", implied=implied, source=f"sglang 0.5.23, srt/arg_groups or srt/layers: {source}")


def _attention_groups(settings: Settings) -> int:
    """In how many groups of ranks each attends to requests of its own; 1 without DP attention."""
    groups = settings.ranks("attn_dp_size")
    if groups == 1 and settings["enable_dp_attention"] is True:
        groups = settings.ranks("dp_size")
    return groups if settings.ranks("tp_size") % groups == 0 else 1


def sglang_fused_all_reduce(settings: Settings) -> Iterator[Decision]:
    """Whether SGLang turns its fused all-reduce on by itself: by the model, on one node of SM90 or SM100."""
    unset = settings["flashinfer_allreduce_fusion_backend"] == "none"
    is_asked = settings["enable_flashinfer_allreduce_fusion"] is True
    if settings["enforce_disable_flashinfer_allreduce_fusion"] is True:
        off = Implied(says="no fused all-reduce and norm: forbidden", drops=("sglang-allreduce-norm",))
        yield Decision(role="server", implied=off, source=_FUSED_SOURCE)
    elif unset and not is_asked and settings.ranks("tp_size") > 1:
        yield Decision(role="server", implied=_automatic(settings), source=_FUSED_SOURCE)


def _automatic(settings: Settings) -> Implied:
    model = settings.model
    against = [
        reason
        for holds, reason in (
            (_attention_groups(settings) > 1, "DP attention"),
            (settings["moe_a2a_backend"] != "none", f"the dispatcher {settings['moe_a2a_backend']}"),
            (settings.ranks("nnodes") > 1, "several nodes, which only SM100 fuses over"),
        )
        if holds
    ]
    if against:
        return Implied(says=f"no fused all-reduce and norm: {', '.join(against)}")
    if model.architecture is None:
        warns = (
            "whether all-reduce, add and norm run in one kernel (sglang-allreduce-norm) goes by the architecture, "
            f"which is not known: {model.known_by}"
        )
        return Implied(says="not known whether all-reduce and norm are fused", warns=warns)
    if model.architecture in _FUSED_ARCHITECTURES:
        says = f"all-reduce, add and norm in one kernel: turned on for {model.architecture} on one node of SM90"
        return Implied(says=says, overlay="sglang-allreduce-norm")
    return Implied(says=f"no fused all-reduce and norm: {model.architecture} is none of the models it is turned on for")


def stored_quantised(role: str) -> Any:
    """A rule: weights that are quantised as they are stored, for one side."""

    def rule(settings: Settings) -> Iterator[Decision]:
        model = settings.model
        if model.quantised:
            warns = (
                f"the weights of {model.name} are stored as {model.quantised}, and an engine takes GEMMs of quantised "
                "weights for them; what runs here are weights in bf16, fp16 or fp32"
            )
            implied = Implied(says=f"{model.quantised} weights", warns=warns)
            yield Decision(role=role, implied=implied, source=model.known_by)

    return rule


OF_VLLM = (vllm_experts, vllm_compilation)
OF_SGLANG = (sglang_placement, sglang_fused_all_reduce)
"""What each of them decides, started alone or by a trainer."""
