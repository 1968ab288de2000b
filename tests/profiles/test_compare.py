"""Engine profiles against each other, without weights: what differs, how sure it is, what sets it, what comes first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moeparity.bisection.outline import outline_checkpoint
from moeparity.errors import SpecError
from moeparity.ops.measured import SHARES
from moeparity.plan.spec.variant_schema import Placement
from moeparity.profiles.compare import architectures, compare, describe, profiles, statements
from moeparity.profiles.report import EngineDifference, EngineToggle
from moeparity.profiles.show import effect_in_words
from tests.command import ROOT, Done, alone, inside
from tests.plan.configs import DEEPSEEK_V3, graph

RANKS = Placement(tensor=8)


def run(*arguments: str | Path) -> Done:
    return inside("show", "engines", *arguments)


def toggle_of(difference: EngineDifference) -> dict[str, EngineToggle]:
    return {toggle.name: toggle for toggle in difference.toggles}


@pytest.mark.parametrize("name", ["hf-eager", "vllm", "sglang-deterministic", "megatron", "deepep-normal"])
def test_an_engine_differs_from_itself_in_nothing(name: str) -> None:
    for architecture in architectures():
        difference = compare(name, name, architecture)
        assert (difference.toggles, difference.known_of_first, difference.known_of_second) == ((), (), ())


def test_batch_invariance_is_what_vllm_says_of_it() -> None:
    difference = compare("vllm", "vllm-batch-invariant", "deepseek_v3", RANKS)
    assert {name: (t.first.value, t.second.value) for name, t in toggle_of(difference).items()} == {
        "op all_reduce:collective": ("vllm.all_reduce_sm90", "vllm.one_stage"),
        **{f"op {op}:rows": ("all", "64") for op in ("linear", "mla_expand", "gate", "lm_head", "experts")},
        "op mla:rows": ("all", "16"),
        "op experts:logistic": ("cuda", "exp"),
        "op swiglu:logistic": ("inductor", "exp"),
    }
    # One split of keys and of K: vllm leaves both to heuristics, which its profile does not state.
    assert set(difference.known_of_second) == {f"{op}:splits" for op in ("mla", "linear", "gate", "lm_head")}
    reduction = toggle_of(difference)["op all_reduce:collective"].second
    assert reduction.set_by == "VLLM_BATCH_INVARIANT=1 (vllm-batch-invariant)"
    # Leaving it out gives vllm's all-reduce, which is what the other has; on 8 ranks it is then fused with the norm.
    left_out = "leaving out VLLM_BATCH_INVARIANT=1"
    assert reduction.changed_by == f"{left_out} (also changes add:output, rms_norm:square and 2 more)"


def test_deterministic_training_and_serving_add_ranks_in_another_order() -> None:
    difference = toggle_of(compare("megatron-deterministic", "sglang-deterministic", placement=RANKS))
    collective = difference["op all_reduce:collective"]
    assert (collective.first.value, collective.second.value) == ("nccl.ring", "nccl.tree")


def test_sglang_deterministic_changes_norms_the_all_reduce_and_log_probabilities() -> None:
    difference = toggle_of(compare("sglang", "sglang-deterministic", placement=RANKS))
    assert set(difference) == {
        "op all_reduce:collective",
        "fusion native_add_norm",
        "fusion triton_norm_after_embedding",
        "fusion triton_norm_after_linear",
        "op log_probs:form",
        *(f"op {op}:rows" for op in ("linear", "attention", "gate", "experts", "lm_head")),
        "op experts:logistic",
    }


@pytest.mark.parametrize(
    ("first", "second", "toggle"),
    [
        ("vllm", "vllm-fp32-head", "op lm_head:output"),
        ("flashinfer-fused", "flashinfer-cutedsl-norm", "op rms_norm:order"),
        ("megatron", "megatron-permute-fusion", "op combine:accumulate"),
        ("megatron", "megatron-unfused-rope", "op rope:products"),
        ("megatron", "megatron-no-grad", "op router:slots"),
        ("fireworks-unfused", "fireworks-mlp-fusion", "op experts:gate_up"),
        ("nemo-rl-dtensor", "nemo-rl-dtensor-stable", "op linear:parallel"),
        ("torchtitan", "torchtitan-deepep", "op router:weights"),
        ("trtllm", "trtllm-gen", "op router:weights"),
    ],
)
def test_every_fusion_is_a_toggle_of_its_own(first: str, second: str, toggle: str) -> None:
    assert toggle in toggle_of(compare(first, second, placement=RANKS if "parallel" in toggle else None))


@pytest.mark.parametrize(
    ("first", "second", "toggles"),
    [
        ("vllm", "vllm-eager", {"op rotary:output"}),
        ("megatron", "megatron-core-0.16", {f"op router:{site}" for site in ("scores", "total")}),
    ],
)
def test_of_deepseek_v3_alone(first: str, second: str, toggles: set[str]) -> None:
    assert toggles <= {*toggle_of(compare(first, second, "deepseek_v3"))}
    assert toggles.isdisjoint(toggle_of(compare(first, second)))


def test_what_a_table_says_costs_most_comes_first() -> None:
    difference = compare("hf-eager", "vllm")
    kinds = [(toggle.kind, toggle.share) for toggle in difference.toggles]
    assert kinds[0] == ("semantics", None)
    shares = [share.least for _, share in kinds if share is not None]
    assert shares == sorted(shares, reverse=True)
    unmeasured = [kind for kind, share in kinds[1:] if share is None]
    assert unmeasured == sorted(unmeasured, key=["rounding", "form", "order"].index)
    assert toggle_of(difference)["op combine:leaves"].share == SHARES[0]
    exact = toggle_of(compare("vllm", "flashinfer-unfused-finalize"))["op combine:order"]
    assert exact.share is not None
    assert exact.share.least < 0.001


def test_what_rests_in_one_engine_is_no_difference_of_two() -> None:
    """torchtitan's eps has nothing to do in Megatron-LM, which ranks by logits: that is the timing's difference."""
    difference = toggle_of(compare("megatron", "torchtitan"))
    assert "op router:timing" in difference
    assert "op router:renormalize_eps" not in difference


def test_shares_are_those_of_the_committed_table() -> None:
    text = (ROOT / "docs" / "roundings.md").read_text("utf-8")
    for share in SHARES:
        row = next(line for line in text.splitlines() if line.startswith(f"| {share.row} |"))
        assert row.split("|")[2].strip().startswith(share.shown)
        assert share.least == pytest.approx(float(share.shown.split()[0]) / 100)


def test_evidence_and_flags_of_both_sides_are_told() -> None:
    difference = toggle_of(compare("hf-eager", "vllm"))
    attention = difference["op attention:implementation"]
    assert (attention.first.evidence, attention.second.evidence) == ("verified", "inferred")
    assert attention.first.set_by == 'attn_implementation="eager" (hf-eager)'
    assert attention.second.set_by == "default (vllm)"
    # Neither engine has a flag for the other's attention.
    assert (attention.first.changed_by, attention.second.changed_by) == ("", "")
    eager = toggle_of(compare("hf-default", "hf-eager"))["op attention:implementation"]
    flag = 'attn_implementation="eager"'
    assert (eager.first.changed_by, eager.second.changed_by) == (flag, f"leaving out {flag}")
    # The profile of DeepEP says nothing of experts: what it takes over from vllm's is no evidence.
    assert toggle_of(compare("hf-eager", "deepep-normal"))["op experts:score_site"].second.evidence == "unknown"


def test_profiles_are_described() -> None:
    profiles_ = {profile.name: profile for profile in profiles()}
    assert profiles_["vllm"].version == "0.33.0"
    assert profiles_["vllm"].not_stated.startswith("the order of the squares")
    assert profiles_["hf-tf32"].engine == "transformers"
    assert describe("sglang-fp32-head").extends == "sglang"
    values = statements("sglang-fp32-head")
    assert [(s.on, s.attribute, s.value, s.evidence) for s in values] == [
        ("lm_head", "inputs", "model", "read"),
        ("lm_head", "output", "fp32", "read"),
    ]


def test_flags_say_of_which_models_and_ranks_their_effect_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    entries = (
        "{flag: --x, model_type: [olmoe], sizes: {heads: {below: 32}}, ranks: {from: 2}, becomes: vllm-eager}",
        "{flag: --x, when: vllm.tuned_tiles}",
        "{flag: --x, becomes: vllm-eager, rules: [{op: gate, set: {output: fp32}}]}",
    )
    listed = "".join(f"  - {entry}\n" for entry in entries)
    path.write_text(f"kind: profile\nname: mine\nextends: vllm\nflags:\n{listed}", "utf-8")
    assert [effect_in_words(flag) for flag in describe(str(path)).flags] == [
        "as vllm-eager (olmoe; heads below 32; from 2 ranks)",
        "not known (vllm.tuned_tiles)",
        "as vllm-eager, gate:output fp32 (unknown)",
    ]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SpecError, match=r"profile 'vlm' is not shipped; .* Did you mean 'vllm'"):
        compare("vlm", "hf-eager")
    with pytest.raises(SpecError, match=r"'qwen3-moe' is no shipped architecture; .* Did you mean 'qwen3_moe'"):
        compare("vllm", "hf-eager", "qwen3-moe")


def test_the_command_lists_profiles() -> None:
    process = run()
    assert process.returncode == 0, process.stderr
    names = [line.split()[0] for line in process.stdout.splitlines() if line and not line.startswith(" ")]
    assert set(names) >= {profile.name for profile in profiles()}


def test_the_command_tells_two_engines_apart(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    process = alone("show", "engines", "hf-eager", "vllm", "--json", out)
    assert process.returncode == 0, process.stderr
    assert "15 toggles" in process.stdout
    assert "expert (verified)" in process.stdout
    data = json.loads(out.read_text("utf-8"))
    assert (data["schema"], len(data["found"]["toggles"])) == ("moeparity.engines/3", 15)
    same = run("vllm", "vllm")
    assert "They differ in nothing that takes effect here." in same.stdout


def test_the_command_prints_one_profile() -> None:
    process = run("sglang")
    assert process.returncode == 0, process.stderr
    assert "moe_fused_gate.py" in process.stdout
    assert "Not stated: shared experts" in process.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("vlm",), "error: show engines: profile 'vlm' is not shipped"),
        (("vllm", "sglang", "--graph", "gpt"), "error: --graph: 'gpt' is no shipped architecture"),
        (("vllm", "sglang", "--tensor", "3"), "do not divide"),
        (("vllm", "--config", "x.yaml"), "No such option: --config"),
        (("vllm", "--json", "nowhere/x.json"), "there is no folder nowhere"),
    ],
)
def test_mistakes_are_told_in_one_message(arguments: tuple[str, ...], says: str) -> None:
    process = run(*arguments)
    assert process.returncode == 2
    assert says in process.stderr
    assert "Traceback" not in process.stderr


def test_no_torch_is_imported() -> None:
    code = (
        "import sys\nfrom moeparity.cli import main\nsys.argv = ['moeparity', 'show', 'engines', 'hf-eager', 'vllm']\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
        "sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_show_prints_the_evidence_of_every_value() -> None:
    rows = outline_checkpoint(ROOT / "checkpoints" / "quickstart", "deepep-normal").rows
    evidence = {(row.op, row.attribute): row.evidence for row in rows}
    assert evidence["combine", "accumulate"] == "unknown"
    assert evidence["experts", "tf32"] == "unknown"
    rows = outline_checkpoint(ROOT / "checkpoints" / "quickstart", "vllm").rows
    evidence = {(row.op, row.attribute): row.evidence for row in rows}
    assert (evidence["combine", "accumulate"], evidence["rope", "products"]) == ("verified: ptx", "verified")
    assert (evidence["experts", "tf32"], evidence["add", "output->norm"]) == ("unknown", "verified: ptx")


def test_phases_stand_side_by_side_where_they_differ(tmp_path: Path) -> None:
    """One profile prefills and decodes like vLLM; transformers' cache is filled in every phase but `forward`."""
    toggles = toggle_of(compare("hf-eager", "vllm", "deepseek_v3"))
    projection = toggles["op mla:projection"]
    assert (projection.first.value, projection.second.value) == (
        "expanded (chunk, decode, verify: context)",
        "absorbed (forward[queries 513:], prefill[queries 513:]: expanded; chunk[queries 513:]: context)",
    )
    assert projection.second.evidence == "read"
    graph(tmp_path, DEEPSEEK_V3)
    values = {(row.op, row.attribute): row.values for row in outline_checkpoint(tmp_path, "trtllm").rows}
    assert values["mla", "projection"] == ("expanded (chunk: context; decode, verify: absorbed)",)
    assert values["mla", "q_latent"] == ("- (decode, verify: bf16)",)
    assert values["mla", "kv_b"] == ("- (chunk, decode, verify: bf16)",)
    rows = outline_checkpoint(ROOT / "checkpoints" / "quickstart", "hf-eager").rows
    layout = next(row for row in rows if row.attribute == "kv_layout")
    assert layout.values == ("projected (prefill, chunk, decode, verify: cached)",)


def test_the_layout_of_keys_is_nothing_to_a_kernel_that_loads_tiles() -> None:
    assert not {"op attention:kv_layout"} & toggle_of(compare("hf-default", "vllm")).keys()
    assert not {"op attention:kv_layout"} & toggle_of(compare("hf-default", "hf-v4")).keys()


def test_statements_say_in_which_phases_they_hold() -> None:
    phases = {s.value: s.phases for s in statements("trtllm") if (s.on, s.attribute) == ("mla", "projection")}
    assert phases == {
        "expanded": ("forward", "prefill"),
        "context": ("chunk",),
        "absorbed": ("decode", "verify"),
    }
    assert "mla  in decode, verify" in run("trtllm").stdout
    assert "mla  in forward[queries :513], prefill[queries :513], chunk[queries :513]" in run("vllm").stdout
