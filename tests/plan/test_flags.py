"""A flag is offered where binding the profile with it gives what the other side has, and nowhere else."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from moeparity.documents.checked import shipped
from moeparity.errors import SpecError, Where
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.flags import Setup, known_flags
from moeparity.plan.offers import offers
from moeparity.plan.rule import Rule
from moeparity.plan.sides import Side
from moeparity.plan.toggles import Toggle, toggles
from tests.plan.flagged_sides import HERE, Truth, shipped_sides

FAMILIES = (("qwen3_moe", 1), ("qwen3_moe", 4), ("deepseek_v3", 1))
"""Models, and over how many ranks they lie."""


@pytest.mark.parametrize(("family", "tensor"), FAMILIES)
def test_every_offered_flag_gives_the_wanted_value_and_none_is_missing(family: str, tensor: int) -> None:
    """For every pair of shipped profiles, every difference of the two, and both sides of it."""
    sides, truth = shipped_sides(family, tensor), Truth()
    offered, wrong, missing = 0, list[str](), list[str]()
    for first, second in combinations(sides, 2):
        for toggle in toggles(sides[first], sides[second]):
            leading = [member for member in toggle.members if member.follows is None]
            for side, opposite in ((first, second), (second, first)):
                flags = {offer.flag for offer in offers(sides[side], sides[opposite].plan, leading)}
                right = truth.flags(sides[side], sides[opposite].plan, leading)
                offered += len(flags)
                wrong += [f"{side} with {flag} for {toggle.name} of {opposite}" for flag in flags - right]
                missing += [f"{side} with {flag} for {toggle.name} of {opposite}" for flag in right - flags]
    print(f"{family}, {tensor} ranks: {len(sides)} profiles, {offered} flags offered, {len(wrong)} of them wrong")
    assert offered > 500
    assert not wrong[:5]
    assert not missing[:5]


@pytest.mark.parametrize("name", shipped("profiles"))
def test_a_flag_that_becomes_a_profile_computes_what_that_profile_says(name: str) -> None:
    """Of the file's becoming flags: the layers are those of the profile that it names, rule by rule."""
    profile = load_profile(name, HERE)
    alone = [flag for flag in profile.files[-1][1].flags if not (flag.ops or flag.rules or flag.is_conditional)]
    becoming = {flag.flag: flag for flag in alone if flag.becomes}
    for flag in known_flags(profile):
        if flag.text in becoming:
            target = load_profile(str(becoming[flag.text].becomes), HERE)
            assert _stated(flag.profile.layers) == _stated(target.layers), flag.text


def test_nothing_is_said_of_flags_whose_effect_nobody_read() -> None:
    texts = {flag.text for name in shipped("profiles") for flag in known_flags(load_profile(name, HERE))}
    unread = ("PRE_SOFTMAX", "PRE-SOFTMAX", "NVTE", "CUBLAS", "NCCL", "BREAKABLE", "FUSED_MOE_GROUPED_TOPK")
    assert len(texts) > 40
    assert not [text for text in texts if any(word in text.upper() for word in unread)]


def offers_of(family: str, first: str, second: str, tensor: int = 1) -> dict[str, tuple[str, str]]:
    """By toggle: what is offered on either side."""
    sides: dict[str, Side] = shipped_sides(family, tensor)
    differences: list[Toggle] = toggles(sides[first], sides[second])
    return {toggle.name: (toggle.reference_changed_by, toggle.candidate_changed_by) for toggle in differences}


def test_what_megatron_s_router_is_told_is_what_helps_it() -> None:
    """The dtype of the router changes its weights, and neither its order of ties nor which scores are chosen by."""
    offered = offers_of("qwen3_moe", "megatron", "vllm")
    assert offered["op router:weights"][0].startswith("--moe-router-dtype fp32")
    for name in ("op router:timing", "op router:tie_break", "op router:softmax", "op experts:score_site"):
        assert offered[name][0] == "", name
    grouped = offers_of("deepseek_v3", "megatron", "vllm")
    for name in ("op router:group_score", "op router:tie_break", "op router:sigmoid", "op router:scaling"):
        assert grouped[name][0] == "", name


def test_sglang_s_deterministic_mode_is_offered_where_it_changes_something() -> None:
    """Its norms round where they did."""
    offered = offers_of("qwen3_moe", "megatron", "sglang")
    assert not [name for name, flags in offered.items() if "normalized" in name and "deterministic" in flags[1]]
    of_mode = offers_of("qwen3_moe", "sglang-deterministic", "sglang")
    assert of_mode["op linear:rows"][1].startswith("--enable-deterministic-inference")


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("{flag: --x}", "a flag `becomes` another profile, or has `rules` and `fusions`"),
        ("{flag: --x, becomes: vllm, when: vllm.tuned_tile}", "when"),
        ("{flag: --x, becomes: vllm, ranks: 0}", "ranks"),
        ("{flag: --x, ops: [gate], rules: [{op: gate, set: {output: fp32}}]}", "`ops` says for which ops"),
        ("{flag: --x, rules: [{op: gate, requested: [output]}]}", "requested names 'output'"),
        ("{flag: --x, rules: [{op: gate, set: {outptu: fp32}}]}", "op gate has no attribute 'outptu'"),
    ],
)
def test_a_flag_that_says_nothing_is_refused(flag: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"kind: profile\nname: mine\nextends: vllm\nflags:\n  - {flag}\n", "utf-8")
    with pytest.raises(SpecError) as error:
        load_profile("./mine.yaml", Where(tmp_path / "x"))
    assert says in str(error.value)
    assert "mine.yaml:5" in str(error.value)


def test_a_flag_of_one_s_own_is_offered(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    rule = "{op: gate, set: {output: fp32}, evidence: {level: read, source: mine 1}}"
    path.write_text(
        f"kind: profile\nname: mine\nextends: vllm\nflags:\n  - {{flag: --fp32-gate, rules: [{rule}]}}\n", "utf-8"
    )
    texts = [flag.text for flag in known_flags(load_profile("./mine.yaml", Where(tmp_path / "x")))]
    # Its own, and those of what it extends.
    assert texts[0] == "--fp32-gate"
    assert "--enforce-eager" in texts


TUNED = {"hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128}
"""Qwen3-30B-A3B's: on one rank o_proj is 2048 x 4096, on two 2048 x 2048, of which vLLM has tiles."""


@pytest.mark.parametrize(
    ("condition", "tensor", "dtype", "becomes"),
    [
        ("ranks: [2, 4]", 2, "bf16", True),
        ("ranks: {from: 2}", 1, "bf16", False),
        # Of groups that attend apart it is not known what the engine does: the flag is none.
        ("ranks: 2", None, "bf16", None),
        ("model_type: [olmoe], ranks: 2", None, "bf16", False),
        ("model_type: [qwen3_moe]", None, "bf16", True),
        ("sizes: {heads: {below: 32}}", 1, "bf16", False),
        ("when: vllm.tuned_tiles", 2, "bf16", True),
        ("when: vllm.tuned_tiles", 2, "fp32", False),
        ("when: vllm.tuned_tiles", 1, "bf16", False),
        ("when: vllm.tuned_tiles", None, "bf16", None),
    ],
)
def test_of_several_flags_of_one_name_the_first_counts_that_holds(
    condition: str, tensor: int | None, dtype: str, becomes: bool | None, tmp_path: Path
) -> None:
    """`becomes`: what the first says; else what the second does, or that nothing is known."""
    path = tmp_path / "mine.yaml"
    entries = (f"{{flag: --x, {condition}, becomes: vllm-eager}}", "{flag: --x, becomes: vllm-fp32-head}")
    listed = "".join(f"  - {entry}\n" for entry in entries)
    path.write_text(f"kind: profile\nname: mine\nextends: vllm\nflags:\n{listed}", "utf-8")
    setup = Setup(model_type="qwen3_moe", sizes=tuple(sorted(TUNED.items())), dtype=dtype, tensor=tensor)
    profile = load_profile("./mine.yaml", Where(tmp_path / "x"))
    layers = [flag.profile.layers for flag in known_flags(profile, setup) if flag.text == "--x"]
    names = {True: "vllm-eager", False: "vllm-fp32-head"}
    expected = [] if becomes is None else [load_profile(names[becomes], HERE).layers]
    assert [_stated(layer) for layer in layers] == [_stated(layer) for layer in expected]


def _stated(layers: tuple[tuple[Rule, ...], ...]) -> list[list[object]]:
    return [[(rule.where, rule.values) for rule in layer] for layer in layers if layer]


def test_a_condition_alone_says_that_nothing_is_known_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    entries = "  - {flag: --enforce-eager, ranks: 2}\n"
    path.write_text(f"kind: profile\nname: mine\nextends: vllm\nflags:\n{entries}", "utf-8")
    profile = load_profile("./mine.yaml", Where(tmp_path / "x"))
    sizes = tuple(sorted(TUNED.items()))
    for tensor, is_known in ((1, True), (2, False)):
        setup = Setup(model_type="qwen3_moe", sizes=sizes, dtype="bf16", tensor=tensor)
        assert ("--enforce-eager" in {flag.text for flag in known_flags(profile, setup)}) == is_known


def test_rules_of_a_flag_come_on_top_of_what_it_becomes() -> None:
    """Uncompiled, vLLM keeps the kernels that the environment names."""
    profile = load_profile("vllm-allreduce-norm-trtllm", HERE)
    (eager,) = (flag for flag in known_flags(profile) if flag.text == "--enforce-eager")
    below, on_top = _stated(eager.profile.layers)[:-1], eager.profile.layers[-1]
    assert below == _stated(load_profile("vllm-eager", HERE).layers)
    assert [rule.values for rule in on_top] == [(("collective", "vllm.all_reduce_trtllm_unfused_sm90"),)]
