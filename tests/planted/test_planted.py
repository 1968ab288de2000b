"""Every value of every attribute, planted alone on one node, is found: the node, the attribute, both values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.bisection.prepare import prepare
from moeparity.bisection.report import Report
from moeparity.engine.forward import forward
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import MODEL
from moeparity.numerics.orders import parse
from moeparity.ops.attribute import Value
from moeparity.ops.registry import OPS
from moeparity.plan.address import file_key
from moeparity.plan.sides import micro_batches
from moeparity.plan.toggles import toggles
from tests.opened import opened
from tests.planted import moe as planted_moe
from tests.planted import quantised as planted_quantised
from tests.planted.places import REFERENCE_VALUE, Sides, plant, random_tokens, write_recipe
from tests.planted.ranks import WHOLE_NUMBERS
from tests.planted.together import Bisected, bisected_together
from tests.planted.values import MODEL_OF, NUMBERS, ORDERS, SHORT, VALUES, Group, Planted, groups
from tests.small_models import SMALL
from tests.two_layers import LAYERS, two_layers

HOST_DEPENDENT = {
    "experts:implementation": "torch's grouped GEMM on CPU is one GEMM per expert, on some CPUs the one `loop` calls",
    "experts:gate_up": "whether one GEMM of width 2I and two of width I agree is up to the CPU's GEMM kernels",
    **{
        f"{op}:kv_layout": "whether a strided and a contiguous operand agree is up to the CPU's GEMM kernels"
        for op in ("attention", "mla")
    },
    **{
        f"{op}:allocated": "whether keys that are hidden change how a GEMM adds is up to the CPU's GEMM kernels"
        for op in ("attention", "mla")
    },
    **{
        f"{op}:{name}": "whether a GEMM and one of fewer columns or heads agree is up to the CPU's GEMM kernels"
        for op in ("attention", "mla", "mla_expand", "lm_head")
        for name in ("tensor", "blocks")
    },
    "linear:splits=2": "whether a GEMM of 256 inputs adds two halves of its own accord is up to the CPU's GEMM kernels",
    **{
        f"sigmoid_gate:logistic={exp}": "torch's own sigmoid takes Sleef's exp too, on some CPUs"
        for exp in ("sleef", "native")
    },
    **{f"swiglu:{name}": "only where torch's silu chooses by position" for name in ("tensor", "blocks")},
    **planted_moe.HOST_DEPENDENT,
    "embedding:tensor": "only -0 becomes +0, and the fixture has none",
    "rms_norm:mean": "torch's own mean divides on CPU, as `divide` does",
    "rms_norm:rsqrt": "torch's own rsqrt on CPU is 1 / sqrt in two roundings, as `sqrt_div` is",
}
"""Attributes whose effect is the processor's business: two separate forwards say whether there is one."""

WITHOUT_EFFECT = (
    planted_moe.WITHOUT_EFFECT
    | planted_quantised.WITHOUT_EFFECT
    | {
        f"{op}:softmax=of_scores": "of the few keys here torch's softmax for 16 bits has the bits of that for fp32, "
        "rounded; see tests/ops/test_llama4.py"
        for op in ("attention", "mla")
    }
    | {
        f"add_images:image={value}": "no token here is one of an image; see tests/ops/test_images.py"
        for value in ("model", "bf16", "fp16", "fp32", "fp64")
    }
    | {
        f"log_probs:{form}={value}": "no logit here is -0 or infinite; see tests/ops/test_requests.py"
        for form, values in (
            ("bias_form", ("named", "all")),
            ("grammar_form", ("filled", "forced")),
            *((form, ("filled", "added")) for form in ("bad_words_form", "min_tokens_form")),
        )
        for value in values
    }
    | {
        f"position_scale:{value}": "places are positions in a step of whole sequences, and logarithms of few numbers "
        "are the same; see tests/ops/test_position_scale.py"
        for value in ("counted=positions", "counted=places", "form=log", "form=log1p")
    }
)

QUICKSTART = Path(__file__).parents[2] / "checkpoints/quickstart"


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first layers of the shipped checkpoint."""
    folder = tmp_path_factory.mktemp("quickstart")
    config = json.loads((QUICKSTART / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": LAYERS}), "utf-8")
    later = tuple(f"model.layers.{layer}." for layer in range(LAYERS, config["num_hidden_layers"]))
    tensors = load_file(QUICKSTART / "model.safetensors")
    save_file({key: x for key, x in tensors.items() if not key.startswith(later)}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def quickstart_fp8(quickstart: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_fp8(quickstart, tmp_path_factory.mktemp("fp8") / "model")


@pytest.fixture(scope="session")
def deepseek_v3_fp8(deepseek_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_fp8(deepseek_v3, tmp_path_factory.mktemp("fp8") / "model")


def in_fp8(source: Path, folder: Path) -> Path:
    """A checkpoint in fp8 by blocks, with a static scale for what each weight is multiplied with."""
    names = quantise(source, FORMATS["fp8-blocks"], folder, planted_quantised.BLOCK)
    static = {f"{name.removesuffix('.weight')}.input_scale": torch.tensor(0.01) for name in (*names, "lm_head.weight")}
    # The largest code of a block is not the one that a scale would be made for.
    tensors = {
        name: x.float().clamp(-240, 240).to(x.dtype) if x.dtype == torch.float8_e4m3fn else x
        for name, x in load_file(folder / "model.safetensors").items()
    }
    save_file({**tensors, **static}, folder / "model.safetensors", {"format": "pt"})
    return folder


# In this file the small checkpoints too have no more.
globals().update({name: two_layers(name) for name in SMALL.keys() & {*MODEL_OF.values()}})


@pytest.fixture(scope="session")
def bisections() -> dict[Group, dict[str, Bisected]]:
    """What was found of each group so far."""
    return {}


@pytest.mark.parametrize("label", VALUES)
def test_planted_value_is_found(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    bisections: dict[Group, dict[str, Bisected]],
    label: str,
) -> None:
    planted, group = VALUES[label], groups()[label]
    if group not in bisections:
        checkpoint = request.getfixturevalue(planted.model)
        bisections[group] = bisected_together(group, checkpoint, tmp_path_factory.mktemp("planted"))
    bisection = bisections[group][label]
    sides = bisection.sides
    assert [(t.nodes, t.members[0].attribute) for t in bisection.study.toggles] == [
        ((sides.node,), planted.attribute.name)
    ]
    open_ = {planted.place, planted.label} & HOST_DEPENDENT.keys() and not differs_here(bisection)
    if open_ or label in WITHOUT_EFFECT:
        assert_without_effect(bisection.report)
    else:
        assert_found(bisection.report, planted, sides)


def differs_here(bisection: Bisected) -> bool:
    """What two separate forwards say of the planted node."""
    sides, ids, size = bisection.sides, bisection.study.tokens.input_ids, micro_batches(bisection.study.candidate).size
    first, two = (
        forward(bisection.study.model, ids, settings=values, micro_batch=size, save=[sides.node])
        for values in sides.sets
    )
    # A router has two values.
    keys = [key for key in first if f"{key}.".startswith(f"{file_key(sides.node)}.")]
    return not all(same_bits(first[key], two[key]) for key in keys)


def assert_found(report: Report, planted: Planted, sides: Sides) -> None:
    root, *later = report.roots
    assert (root.node, root.op) == (sides.node, planted.op.name)
    assert [(choice.attribute, choice.reference, choice.candidate) for choice in root.choices] == [
        (planted.attribute.name, shown(sides.reference), shown(sides.candidate))
    ]
    assert not later, "one planted node is the only root"
    (toggle,) = report.toggles
    assert (toggle.reference, toggle.candidate) == (shown(sides.reference), shown(sides.candidate))
    assert not toggle.had_no_effect
    assert toggle.alone.changed_nodes == toggle.restored.changed_nodes > 0
    assert toggle.restores_all, "the restored trial has the reference's bits at every node"
    if report.metrics.nonfinite_tokens:
        assert planted.place == "kv_cache:overflow", "infinities have no distances"
        return
    # A dense model has no routes.
    assert (toggle.restored.kl, toggle.restored.flipped_routes or 0.0) == (0.0, 0.0)
    if report.metrics.outside_tokens == report.run.scored_tokens:
        assert planted.place in ("log_probs:min_p_form", "log_probs:top_k"), "few are kept, none of them was sampled"
        return
    assert toggle.restored.k3 == 0.0
    assert toggle.alone.kl == report.metrics.kl


def assert_without_effect(report: Report) -> None:
    assert [toggle.had_no_effect for toggle in report.toggles] == [True]
    (sentence,) = report.reading
    assert sentence.startswith(f"{report.toggles[0].name} (")
    assert sentence.endswith(") had no effect: no bit changed at any node.")
    assert (report.roots, report.verdict.status) == ((), "pass")


def shown(value: Value) -> str:
    """A value as a report prints it, in the fixtures' dtype."""
    return "model (bf16)" if value == MODEL else str(value)


def test_the_tables_name_values_that_exist() -> None:
    places = {planted.place for planted in VALUES.values()}
    assert VALUES.keys() >= REFERENCE_VALUE.keys() | WITHOUT_EFFECT.keys()
    assert places >= SHORT.keys() | NUMBERS.keys()
    assert places | VALUES.keys() >= HOST_DEPENDENT.keys()
    assert places | VALUES.keys() | OPS.keys() >= MODEL_OF.keys()


def test_every_number_is_listed() -> None:
    assert NUMBERS.keys() == {f"{o.name}:{a.name}" for o in OPS.values() for a in o.attributes if a.number}


def test_every_whole_number_is_listed() -> None:
    stateless = [op for op in OPS.values() if op.tokens.state is None]
    expected = {f"{o.name}:{a.name}" for o in stateless for a in o.attributes if a.least is not None}
    assert expected == WHOLE_NUMBERS.keys()


def test_orders_are_listed_as_they_are_printed() -> None:
    stateless = [op for op in OPS.values() if op.tokens.state is None]
    assert ORDERS.keys() == {f"{o.name}:{a.name}" for o in stateless for a in o.attributes if a.order}
    assert all(str(parse(order)) == order for listed in ORDERS.values() for order in listed)


SITES = [p for p in VALUES.values() if p.attribute.kind == "rounding" and p.value == MODEL]


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.place)
def test_model_is_the_dtype_of_the_variant(request: pytest.FixtureRequest, tmp_path: Path, site: Planted) -> None:
    """`model` and the variant's own dtype are one value: no toggle."""
    checkpoint = request.getfixturevalue(site.model)
    node = plant(site, opened(checkpoint)).node
    sides = ({"set": {f"{node}:{site.attribute.name}": value}} for value in (MODEL, "bf16"))
    path = write_recipe(tmp_path, checkpoint, {"input_ids": random_tokens(vocab=256)}, *sides)
    ready = prepare(path, device="cpu", opener=opened)
    assert toggles(ready.reference, ready.candidate) == []
