"""What vLLM 0.33.0 and sglang 0.5.23 decide from several options and from the model, with the place in their code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from moeparity.profiles.launch.architecture import Model
from moeparity.profiles.launch.options import Decision, Implied, LaunchSettings
from moeparity.profiles.launch.server_collectives import sglang_all_reduce, vllm_all_reduce
from moeparity.profiles.launch.server_stages import listed_stages
from moeparity.profiles.launch.shared import ORIGINAL
from moeparity.profiles.launch.source import Unresolved
from moeparity.profiles.launch.vllm_graphs import vllm_breakable
from moeparity.profiles.launch.vllm_resolved import vllm_cpu

DEEPEP = ("deepep-normal", "deepep-low-latency", "deepep-low-latency-fp8", "deepep-elastic")
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
_OF_ONE_NODE = 8
_NOT_FUSED = "sglang 0.5.23, srt/arg_groups/overrides.py _deterministic_allreduce_fusion_disable"
_SCATTERED = (
    "ranks' sums of routed rows are reduce-scattered by NCCL to the groups that attend apart; what runs here is the "
    "all-reduce of the rows of all groups"
)
_REUSES = ("auto", "ascend", "fa3", "fa4", "triton")
"""Attention backends with which deterministic inference keeps prefix caching; on Hopper the default is fa3."""
_DETERMINISTIC = "sglang 0.5.23, srt/arg_groups/attention_hook.py:655-664, choices.py:249"
_SPREADING_NAMES = """
allgather_reducescatter deepep_high_throughput deepep_low_latency deepep_v2 flashinfer_nvlink_one_sided passthrough
mori_high_throughput mori_low_latency nixl_ep
"""
_SPREADING = frozenset(_SPREADING_NAMES.split())
"""vLLM's all-to-all backends with which the ranks of a group share out its tokens."""
_SHARED_OUT = (
    "the ranks of a group share out its tokens before router and experts (sequence-parallel MoE, vllm/config/"
    "parallel.py:768 use_sequence_parallel_moe): their GEMMs have fewer rows"
)
_SCATTERED_TOO = (
    ", and the ranks' sums of attention are reduce-scattered, not all-reduced (models/deepseek_v2.py:1300, 1395)"
)
_WITH_SHARED_EXPERTS = frozenset(
    {"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeForCausalLM", "Qwen2MoeForCausalLM"}
)
_IN_TWO_STEPS = (
    "routed experts are added up between the groups, then with shared ones within each; what runs here adds up the two "
    "kinds apart, each over all of its ranks"
)
_DISPATCH = "vllm/model_executor/layers/fused_moe/runner/moe_runner.py _maybe_dispatch"
_SPANNING_NAMES = """
deepep mooncake nixl ascend_fuseep flashinfer flashinfer_megamoe mori pplx deepep_v2 megamoe
"""
_SPANNING = frozenset(_SPANNING_NAMES.split())
"""SGLang's dispatchers that spread the experts over all ranks."""


def vllm_experts(settings: LaunchSettings) -> Iterator[Decision]:
    """Over how many ranks vLLM's experts lie, and whether rows are sent to them."""
    if any(isinstance(settings[name], Unresolved) for name in ("tensor_parallel_size", "data_parallel_size")):
        return
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


def _vllm_expert_parallel(settings: LaunchSettings, tensor: int, data: int) -> Decision:
    backend = settings["all2all_backend"]
    placement: dict[str, int | bool | str] = {"expert": tensor * data}
    if data == 1:
        says = f"experts lie on the {tensor} ranks of the tensor-parallel group, whose sums are all-reduced"
        if "all2all_backend" in settings.stated:
            says += f"; {backend} has no effect without data parallel"
        return Decision(
            role="server", implied=Implied(says=says, placement=placement, drops=DEEPEP), source=_ALL_TO_ALL
        )
    warns = [_SCATTERED] if backend in ("allgather_reducescatter", "naive") else []
    if backend in _SPREADING and tensor > 1 and settings.model.is_dense is not True:
        is_latent = settings.model.architecture in ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM")
        scatters = is_latent and settings.values.get("pipeline_parallel_size", 1) == 1
        warns.append(f"{_SHARED_OUT}{_SCATTERED_TOO if scatters else ''}; what runs here gives every rank all of them")
    says = f"experts lie on {tensor * data} ranks: {data} groups of {tensor}, which attend apart"
    placement = {**placement, **_apart(data, "experts")}
    sets: dict[str, str | float] = {}
    if tensor > 1 and settings.model.architecture in _WITH_SHARED_EXPERTS:
        sets = {"all_reduce:reduce": "now"}
        warns.append(_IN_TWO_STEPS)
    return Decision(
        role="server",
        implied=Implied(says=says, placement=placement, sets=sets, warns="; ".join(warns)),
        source=f"{_ALL_TO_ALL}; {_DISPATCH}",
    )


def _apart(groups: int, gathered: str) -> dict[str, int | bool | str]:
    """The placement of groups of ranks that attend apart."""
    return {"attention": groups, "gathered": gathered}


def vllm_compilation(settings: LaunchSettings) -> Iterator[Decision]:
    """What a compilation config says of the fused all-reduce, and of compiling at all."""
    config = settings["compilation_config"]
    if not isinstance(config, dict) or not config:
        return
    source = f"{_OF_VLLM}vllm/config/compilation.py"
    passes = config.get("pass_config")
    if isinstance(passes, dict) and str(passes.get("fuse_allreduce_rms")).lower() in ("false", "0"):
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


def sglang_placement(settings: LaunchSettings) -> Iterator[Decision]:
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


def _between(settings: LaunchSettings, gathered: str) -> str:
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


def _attention_groups(settings: LaunchSettings) -> int:
    """In how many groups of ranks each attends to requests of its own; 1 without DP attention."""
    groups = settings.ranks("attn_dp_size")
    if groups == 1 and settings["enable_dp_attention"] is True:
        groups = settings.ranks("dp_size")
    return groups if settings.ranks("tp_size") % groups == 0 else 1


def sglang_fused_all_reduce(settings: LaunchSettings) -> Iterator[Decision]:
    """Whether SGLang turns its fused all-reduce on by itself: by the model, on one node of SM90 or SM100."""
    if settings["enable_deterministic_inference"] is True or str(settings["rl_on_policy_target"]).lower() != "none":
        off = Implied(says="no fused all-reduce and norm: deterministic", drops=("sglang-allreduce-norm",))
        yield Decision(role="server", implied=off, source=_NOT_FUSED)
        return
    unset = settings["flashinfer_allreduce_fusion_backend"] == "none"
    is_asked = settings["enable_flashinfer_allreduce_fusion"] is True
    if settings["enforce_disable_flashinfer_allreduce_fusion"] is True:
        off = Implied(says="no fused all-reduce and norm: forbidden", drops=("sglang-allreduce-norm",))
        yield Decision(role="server", implied=off, source=_FUSED_SOURCE)
    elif unset and not is_asked and settings.ranks("tp_size") > 1:
        yield Decision(role="server", implied=_automatic(settings), source=_FUSED_SOURCE)


def _automatic(settings: LaunchSettings) -> Implied:
    model = settings.model
    against = [
        reason
        for holds, reason in (
            (_attention_groups(settings) > 1, "DP attention"),
            (settings["moe_a2a_backend"] != "none", f"the dispatcher {settings['moe_a2a_backend']}"),
            (settings.ranks("nnodes") > 1, "several nodes, which only SM100 fuses over"),
            (settings.ranks("tp_size") > _OF_ONE_NODE, "more ranks than one node has GPUs"),
            (isinstance(settings.values.get("nnodes"), Unresolved), "how many nodes is not resolved"),
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


def unsampled(settings: LaunchSettings, option: str, raw: bool) -> Mapping[str, str]:
    """That a sampler's defaults have no effect where log-probabilities are `raw`, before any sampler."""
    return {option: "log-probabilities are of logits before the sampler"} if raw else {}


def sglang_log_probs(settings: LaunchSettings) -> Iterator[Decision]:
    """How SGLang computes log-probabilities where the temperature is not to divide the logits: log-softmax in fp32."""
    if settings.values.get(ORIGINAL) is not True:
        return
    sets: dict[str, str | float] = {"log_probs:temperature": 1}
    if str(settings["rl_on_policy_target"]).lower() != "none":
        sets |= {f"log_probs:{name}": "fp32" for name in ("inputs", "scaled", "output")}
    elif settings["enable_deterministic_inference"] is not True:
        sets["log_probs:form"] = "log_softmax"
    source = "sglang 0.5.23, srt/layers/sampler.py Sampler.forward"
    yield Decision(role="server", implied=Implied(says="a log-softmax of the logits in fp32", sets=sets), source=source)


_SHARED_SOURCE = (
    "sglang 0.5.23, srt/layers/moe/utils.py:600 resolve_shared_experts_config, srt/models/deepseek_v2.py:3326-3390, "
    "glm4_moe.py:1012-1032, srt/arg_groups/overrides.py:1529-1574"
)
_UNFUSING = ("flashinfer_cutedsl", "flashinfer_trtllm", "experimental_sgl_trtllm", "flashinfer_trtllm_routed")
"""Runners of experts that take no shared expert among the routed ones."""


def sglang_shared_experts(settings: LaunchSettings) -> Iterator[Decision]:
    """Whether SGLang runs the shared expert as one more routed expert: of DeepSeek-V3's size and GLM-4.5 on its own."""
    if not _fuses_shared(settings.model) or settings.is_on("enforce_shared_experts_fusion"):
        return
    against = [
        reason
        for holds, reason in (
            (settings["disable_shared_experts_fusion"] is True, "switched off"),
            (settings.ranks("ep_size") > 1, "expert parallel"),
            (settings["moe_a2a_backend"] != "none", f"the dispatcher {settings['moe_a2a_backend']}"),
            (settings["moe_runner_backend"] in _UNFUSING, f"the runner {settings['moe_runner_backend']}"),
            (_overlaps(settings), "batches that overlap"),
        )
        if holds
    ]
    if against:
        apart = Implied(says=f"shared experts are added apart, as the profile has it: {', '.join(against)}")
        yield Decision(role="server", implied=apart, source=_SHARED_SOURCE)
        return
    warns = (
        "it is summed among the routed ones, and the profile adds it apart: set combine:shared slot, or start with "
        "--disable-shared-experts-fusion"
    )
    says = f"the shared expert runs as one more routed expert: turned on for {settings.model.architecture}"
    yield Decision(role="server", implied=Implied(says=says, warns=warns), source=_SHARED_SOURCE)


def _overlaps(settings: LaunchSettings) -> bool:
    names = ("enable_two_batch_overlap", "enable_single_batch_overlap")
    is_deepseek = settings.model.architecture == "DeepseekV3ForCausalLM"
    return is_deepseek and any(map(settings.is_on, names))


def _fuses_shared(model: Model) -> bool:
    """Whether a model's shared expert may be fused; DeepSeek-V3's class by 256 routed experts and one shared."""
    if model.architecture != "DeepseekV3ForCausalLM":
        return model.architecture == "Glm4MoeForCausalLM"
    if model.sizes:
        return (model.sizes.get("n_routed_experts"), model.sizes.get("n_shared_experts")) == (256, 1)
    return bool(re.search(r"deepseek-(v3|r1)", model.name.lower()))


def stored_quantised(role: str) -> Any:
    """A rule: weights that are quantised as they are stored, for one side."""

    def rule(settings: LaunchSettings) -> Iterator[Decision]:
        model = settings.model
        if model.quantised:
            warns = (
                f"the weights of {model.name} are stored as {model.quantised}, and an engine takes GEMMs of quantised "
                "weights for them; what runs here are weights in bf16, fp16 or fp32"
            )
            implied = Implied(says=f"{model.quantised} weights", warns=warns)
            yield Decision(role=role, implied=implied, source=model.known_by)

    return rule


def idle_of_sglang(prefix: str) -> Callable[[LaunchSettings], Mapping[str, str]]:
    """Options of SGLang behind a prefix that it passes over, for what else is set."""

    def idle(settings: LaunchSettings) -> Mapping[str, str]:
        backend = settings[f"{prefix}attention_backend"]
        if settings[f"{prefix}enable_deterministic_inference"] is not True or backend in _REUSES:
            return {}
        reason = f"deterministic inference switches prefix caching off with {backend} ({_DETERMINISTIC})"
        return {f"{prefix}disable_radix_cache": reason}

    return idle


OF_VLLM = (
    vllm_experts,
    vllm_compilation,
    vllm_breakable,
    vllm_all_reduce,
    vllm_cpu,
    listed_stages("VLLM_PP_LAYER_PARTITION", "pipeline_parallel_size", alone=False),
)
OF_SGLANG = (
    sglang_placement,
    sglang_fused_all_reduce,
    sglang_all_reduce,
    sglang_shared_experts,
    sglang_log_probs,
    listed_stages("SGLANG_PP_LAYER_PARTITION", "pp_size", alone=True),
)
"""What each of them decides, started alone or by a trainer."""
