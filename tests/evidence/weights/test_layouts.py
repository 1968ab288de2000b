"""Fingerprints are those of the checkpoint's tensors, however a program fuses, stacks, cuts, pads and turns them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM

from moeparity.errors import SpecError, WeightsError
from moeparity.evidence.weights.compare import compare
from moeparity.evidence.weights.fingerprint_files import RankWeights, Weights, open_weights
from moeparity.evidence.weights.report import WeightsReport
from moeparity.evidence.weights.weight_layout import WeightLayout
from tests.errors.base import BASE, copy, weights
from tests.evidence.weights.programs import job, program, served, sglang

HUB = open_weights(BASE)


def equal(report: WeightsReport) -> bool:
    """All bits, and nothing left out."""
    return report.exit_code == 0 and report.equal == report.compared == len(weights())


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_server_cut_over_ranks_has_the_checkpoints_bits(ranks: int, experts: bool) -> None:
    if ranks == 4 and not experts:
        # Eight rows of an expert over four ranks, and columns that begin within a word of 64 bits.
        assert weights()["model.layers.0.mlp.experts.0.down_proj.weight"].shape[1] // ranks == 2
    rank_tensors = [served((rank, ranks), (rank, ranks) if experts else (0, 1)) for rank in range(ranks)]
    report = compare(HUB, job(rank_tensors, experts=experts))
    assert equal(report), report.findings
    assert report.aside == ()
    report = compare(HUB, job(list(map(sglang, rank_tensors)), experts=experts, layout="sglang"))
    assert equal(report), report.findings


def test_attention_that_is_cut_over_fewer_ranks() -> None:
    """Two groups of one rank: every rank has all of attention, and its half of the rest."""
    whole, by_rank = sglang(served()), []
    for rank in range(2):
        rank_tensors = {
            name: whole[name] if "self_attn" in name else value for name, value in sglang(served((rank, 2))).items()
        }
        layout = WeightLayout(BASE, "sglang", tensor=(rank, 2), attention=(0, 1))
        by_rank.append(RankWeights(rank=rank, ranks=2, cast="", parts=tuple(layout.parts([program(rank_tensors)]))))
    report = compare(HUB, Weights(source="job", by_rank=tuple(by_rank)))
    assert equal(report), report.findings


def test_transformers_stacks_of_experts_and_its_buffers() -> None:
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16)
    parts = tuple(WeightLayout(BASE, "transformers").parts([nn.DataParallel(model)]))
    rank_weights = RankWeights(rank=0, ranks=1, cast="", parts=parts)
    report = compare(HUB, Weights(source="model", by_rank=(rank_weights,)))
    assert equal(report), report.findings
    assert "model.rotary_emb.inv_freq, in B alone, is a buffer that no checkpoint keeps" in report.aside


def test_a_trainer_in_fp32_is_compared_as_rounded() -> None:
    wide = program({name: tensor.float() for name, tensor in weights().items()})

    def weights_in(dtype: str | None) -> Weights:
        parts = tuple(WeightLayout(BASE, dtype=dtype).parts([wide]))
        rank_weights = RankWeights(rank=0, ranks=1, cast=dtype or "", parts=parts)
        return Weights(source="trainer", by_rank=(rank_weights,))

    assert equal(compare(HUB, weights_in("bf16")))
    apart = compare(HUB, weights_in(None))
    assert (apart.exit_code, apart.compared) == (3, 0)
    assert apart.findings[0].says.startswith("bfloat16 in A, float32 in B")


def test_dtensors_say_themselves_what_they_are() -> None:
    ranks = []
    for rank in range(4):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            mesh = init_device_mesh("cpu", (2, 2))
            module = nn.Module()
            for name, tensor in weights().items():
                # As FSDP over tensor parallelism: cut in two axes of the mesh.
                axes = [Shard(0), Shard(tensor.dim() - 1)] if tensor.dim() > 1 else [Shard(0), Shard(0)]
                local = tensor.chunk(2, 0)[rank // 2].chunk(2, tensor.dim() - 1)[rank % 2]
                # As buffers: torch keeps what making a parameter of it gives, with the mesh of the first rank.
                module._buffers[name] = DTensor.from_local(
                    local, mesh, axes, run_check=False, shape=tensor.shape, stride=tensor.stride()
                )
            ranks.append(RankWeights(rank=rank, ranks=4, cast="", parts=tuple(WeightLayout(BASE).parts([module]))))
        finally:
            dist.destroy_process_group()
    report = compare(HUB, Weights(source="fsdp", by_rank=tuple(ranks)))
    assert equal(report), report.findings


MEGATRON = """kind: layout
weights:
  - name: "decoder.layers.{i}.self_attention.linear_qkv.weight"
    holds:
      - "model.layers.{i}.self_attn.q_proj.weight"
      - "model.layers.{i}.self_attn.k_proj.weight"
      - "model.layers.{i}.self_attn.v_proj.weight"
    groups: $num_key_value_heads
    cut: [{axis: 0, over: tensor}]
  - name: "decoder.layers.{i}.mlp.experts.linear_fc1.weight{e}"
    local_experts: true
    holds: ["model.layers.{i}.mlp.experts.{e}.gate_proj.weight", "model.layers.{i}.mlp.experts.{e}.up_proj.weight"]
  - name: "decoder.layers.{i}.mlp.turned"
    transposed: true
    stacked: true
    holds: ["model.layers.{i}.mlp.experts.{e}.down_proj.weight"]
    cut: [{axis: 0, over: expert}]
"""


def test_groups_local_experts_and_turned_stacks(tmp_path: Path) -> None:
    """As Megatron-LM holds them: each group of heads with its keys and values, experts counted from 0 on each rank."""
    hub = copy(tmp_path / "hub", config={"num_key_value_heads": 2})
    (tmp_path / "layout.yaml").write_text(MEGATRON)
    whole = weights()
    at = "model.layers.1."
    heads = "decoder.layers.1.self_attention.linear_qkv.weight"
    q, k, v = (whole[f"{at}self_attn.{name}_proj.weight"] for name in "qkv")
    ranks = []
    for rank in range(2):
        tensors = {heads: torch.cat([tensor.chunk(2)[rank] for tensor in (q, k, v)])}
        for number in range(2):
            expert_path = f"{at}mlp.experts.{2 * rank + number}."
            tensors[f"decoder.layers.1.mlp.experts.linear_fc1.weight{number}"] = torch.cat(
                [whole[f"{expert_path}{name}_proj.weight"] for name in ("gate", "up")]
            )
        downs = [whole[f"{at}mlp.experts.{2 * rank + number}.down_proj.weight"].T for number in range(2)]
        tensors["decoder.layers.1.mlp.turned"] = torch.stack(downs)
        ranks.append(tensors)
    report = compare(HUB, job(ranks, experts=True, layout=tmp_path / "layout.yaml", checkpoint=hub))
    assert {finding.sort for finding in report.findings} == {"missing"}
    assert report.equal == report.compared == 3 + 4 * 3
    fused = torch.cat(
        [part for group in range(2) for part in (q.chunk(2)[group], k.chunk(2)[group], v.chunk(2)[group])]
    )
    layout = WeightLayout(hub, tmp_path / "layout.yaml")
    parts = layout.parts([program({heads: fused})])
    assert sum(part.total for part in parts if part.tensor.endswith("q_proj.weight")) % 2**64 == next(
        part.total for part in HUB.by_rank[0].parts if part.tensor == f"{at}self_attn.q_proj.weight"
    )


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"model.layers.0.self_attn.qkv_proj.weight": (30, 16)}, r"\[30, 16\]; expected 32 rows, by the layout"),
        ({"model.layers.0.self_attn.o_proj.weight": (16, 8)}, r"\[16, 8\]; expected \[16\] behind its rows"),
        ({"model.layers.0.mlp.experts.routed_experts.w2_weight": (3, 16, 8)}, "expected 4 experts in its first axis"),
        ({"model.layers.7.self_attn.qkv_proj.weight": (32, 16)}, r"model\.layers\.7\..*which the checkpoint has not"),
        (
            {"model.layers.0.input_layernorm.weight": (8,)},
            r"its shape is \[8\], the checkpoint's \[16\]. Say in a layout",
        ),
        (
            {"model.layers.9.mlp.experts.routed_experts.w2_weight": (4, 16, 8)},
            r"the checkpoint has no model\.layers\.9",
        ),
    ],
)
def test_parameters_that_do_not_fit_are_refused(tensors: dict[str, tuple[int, ...]], words: str) -> None:
    module = program({name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in tensors.items()})
    with pytest.raises(WeightsError, match=words):
        WeightLayout(BASE, "vllm").parts([module])


def test_layouts_that_cant_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"tensor=\(2, 2\): expected a rank and how many there are"):
        WeightLayout(tensor=(2, 2))
    with pytest.raises(WeightsError, match=r"dtype='bfloat16': expected one of bf16, fp16, fp32\. Did you mean 'bf16'"):
        WeightLayout(dtype="bfloat16")
    with pytest.raises(WeightsError, match="its rules name tensors of a checkpoint"):
        WeightLayout(layout="vllm")
    with pytest.raises(SpecError, match=r"layout 'vlm' is not shipped.*Did you mean 'vllm'"):
        WeightLayout(BASE, "vlm")
    with pytest.raises(SpecError, match="there is no file"):
        WeightLayout(BASE, "no/layout.yaml")
    (tmp_path / "layout.yaml").write_text("kind: layout\n")
    with pytest.raises(SpecError, match="it says nothing of weights"):
        WeightLayout(BASE, tmp_path / "layout.yaml")
    (tmp_path / "layout.yaml").write_text(MEGATRON.replace("$num_key_value_heads", "$no_field"))
    module = program({"decoder.layers.1.self_attention.linear_qkv.weight": torch.zeros(32, 16)})
    with pytest.raises(WeightsError, match=r"config\.json has no whole number no_field"):
        WeightLayout(BASE, tmp_path / "layout.yaml").parts([module])
    with pytest.raises(WeightsError, match=r"16 can't be cut into 3 equal parts"):
        WeightLayout(BASE, "vllm", tensor=(0, 3)).parts([program(served())])


def test_shapes_come_from_config_json_where_there_are_no_weights() -> None:
    config = AutoConfig.from_pretrained("checkpoints/deep")
    layout = WeightLayout("checkpoints/deep")
    assert layout.parts([program({"lm_head.weight": torch.zeros(config.vocab_size, config.hidden_size)})])
    with pytest.raises(WeightsError, match="the checkpoint's"):
        layout.parts([program({"lm_head.weight": torch.zeros(3, 5)})])


def test_stages_of_a_pipeline_have_the_checkpoints_names_and_other_modules_their_number() -> None:
    stages = [program({name: weights()[name]}) for name in ("model.norm.weight", "lm_head.weight")]
    assert [part.tensor for part in WeightLayout(BASE).parts(stages)] == ["model.norm.weight", "lm_head.weight"]
    assert [part.tensor for part in WeightLayout().parts(stages)] == ["0.model.norm.weight", "1.lm_head.weight"]
