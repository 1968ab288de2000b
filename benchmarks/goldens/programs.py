"""Programs of transformers on the shipped checkpoint, each with something of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import moeparity

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "quickstart"
RECIPE = """kind: recipe
checkpoint: {checkpoint}
tokens: {{file: {ids}, sampled_from: reference}}
reference: {{profile: hf-eager}}
candidate: {{trace: {trace}}}
gate: {{metric: k3, below: 1e-4, reduce: token}}
"""


def main(name: str, folder: Path) -> None:
    """Run one program under a capture, and write a recipe of its trace beside it."""
    torch.set_num_threads(1)
    kind = "sdpa" if name == "sdpa" else "eager"
    model = AutoModelForCausalLM.from_pretrained(
        CHECKPOINT,
        dtype=torch.float32 if name == "fp32" else "auto",
        attn_implementation=kind,
        experts_implementation="eager",
    )
    layer = model.model.layers[1]
    with torch.no_grad():
        if name == "stale":
            layer.self_attn.k_proj.weight[0] *= 2
        if name == "swapped":
            gate, up = layer.mlp.experts.gate_up_proj[0].chunk(2)
            layer.mlp.experts.gate_up_proj[0] = torch.cat([up, gate])
        if name == "normless":
            layer.post_attention_layernorm.weight.fill_(1)
    if name == "scaled":
        layer.self_attn.scaling *= 1.5
    if name == "other_top_k":
        layer.mlp.gate.top_k -= 1
    ids = torch.randint(3, 200, (4, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if name == "padded":
        mask[1, :4] = 0
    with torch.no_grad(), moeparity.capture(folder, level="op,module", save="*"):
        if name == "decoded":
            out = model(input_ids=ids[:, :-2], use_cache=True)
            for position in (-2, -1):
                step = ids[:, position:] if position == -1 else ids[:, position : position + 1]
                out = model(input_ids=step, past_key_values=out.past_key_values, use_cache=True)
        else:
            model(input_ids=ids, attention_mask=mask)
    rows = [f'{{"input_ids": {row.tolist()}}}\n' for row in ids]
    tokens = folder.with_suffix(".jsonl")
    tokens.write_text("".join(rows), "utf-8")
    recipe = RECIPE.format(checkpoint=CHECKPOINT, ids=tokens.name, trace=folder.name)
    folder.with_suffix(".yaml").write_text(recipe, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
