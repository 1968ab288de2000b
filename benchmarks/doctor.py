"""Runs of transformers with a planted fault or without one, examined by the doctor: what it names, and what wrongly.

    python -m benchmarks.doctor FOLDER [--cases 60] [--seed 1]

Each case is drawn: two models of transformers score tokens, each in batches of its own size and with its own kernel of
attention, and one of them may have a fault. They are two layers of the shipped checkpoint, whose weights an update has
moved by a drawn fraction. FOLDER keeps a line for each case, and a second run goes on behind the last. Exits with 1 if
a clean run, or one with a fault that no hypothesis is, is given a name.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.turns import header
from moeparity.doctor.case import Request
from moeparity.doctor.examine import examine
from tests.doctor.programs import Patch, drifted, log, scored, tokens, two_layers

KINDS = ("clean", "stale", "mistake", "unlisted")
STALE: Mapping[str, str] = {
    "stale weights of layer 0": ".layers.0.",
    "stale weights of layer 1": ".layers.1.",
    "stale weights of layers[0].moe.experts": ".layers.0.mlp.experts.",
    "stale weights of layers[1].moe.experts": ".layers.1.mlp.experts.",
    "stale weights of attention of layer 0": ".layers.0.self_attn.",
    "stale weights of attention of layer 1": ".layers.1.self_attn.",
    "stale weights of attention of all layers": ".self_attn.",
    "stale weights of routed experts of all layers": ".mlp.experts.",
    "stale weights of layers[1].attention.o_proj": ".layers.1.self_attn.o_proj.",
    "stale weights of layers[0].attention.v_proj": ".layers.0.self_attn.v_proj.",
    "stale weights of layers[0].moe.gate": ".layers.0.mlp.gate.",
    "stale weights of lm_head": "lm_head.",
    "stale weights of embed": "embed_tokens.",
    "stale expert 3 of layers[1].moe.experts": ".layers.1.mlp.experts.3.",
    "stale expert 7 of layers[0].moe.experts": ".layers.0.mlp.experts.7.",
}
"""The cause to be named, and the weights that are as they were."""


def renormalised(model: Any) -> None:
    """Scores of the chosen experts renormalised where they must not be, or the other way round."""
    for layer in model.model.layers:
        layer.mlp.gate.norm_topk_prob = not layer.mlp.gate.norm_topk_prob


def without_query_norm(model: Any) -> None:
    """Queries and keys that are not normalised."""
    for layer in model.model.layers:
        layer.self_attn.q_norm = layer.self_attn.k_norm = nn.Identity()


def exchanged(model: Any) -> None:
    """Gate and up of all experts exchanged."""
    for layer in model.model.layers:
        weight = layer.mlp.experts.gate_up_proj
        weight.data = torch.cat(tuple(reversed(weight.data.chunk(2, 1))), 1)


MISTAKES: Mapping[str, Patch] = {
    "renormalisation": renormalised,
    "qk-norm-missing": without_query_norm,
    "gate-and-up-exchanged": exchanged,
}


def other_activation(model: Any) -> None:
    """Another function between gate and up."""
    for layer in model.model.layers:
        layer.mlp.experts.act_fn = nn.GELU()


def top_k_smaller(model: Any) -> None:
    """One expert less for each token."""
    for layer in model.model.layers:
        layer.mlp.gate.top_k -= 1


def scaled_layer(model: Any) -> None:
    """A projection 5 % too large."""
    model.model.layers[0].self_attn.o_proj.weight.data *= 1.05


def older(model: Any) -> None:
    """Weights of one layer that are those of no checkpoint at hand."""
    draw = torch.Generator().manual_seed(17)
    weight = model.model.layers[1].self_attn.o_proj.weight
    weight.data += (weight.data.float() * 0.3 * torch.randn(weight.shape, generator=draw)).to(weight.dtype)


def shifted_positions(model: Any) -> None:
    """Positions that count too fast."""
    model.model.rotary_emb.inv_freq *= 1.3


UNLISTED: Mapping[str, Patch] = {
    function.__name__: function
    for function in (other_activation, top_k_smaller, scaled_layer, older, shifted_positions)
}


def examined(folder: Path, seed: int, number: int, current: Path) -> dict[str, Any]:
    """Draw a case, make its evidence, examine it."""
    draw = random.Random(f"{seed} {number}")  # noqa: S311
    kind = draw.choice(KINDS)
    ids = tokens(draw.choice((16, 24, 32)), draw.choice((16, 24, 40)))
    fraction, party = draw.choice((0.05, 0.1, 0.2)), draw.choice(("sampler", "trainer"))
    place = folder / "case"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    previous = drifted(current, place / "previous", fraction=fraction)
    faulty, patch, truth = current, None, ""
    if kind == "stale":
        truth = draw.choice(tuple(STALE))
        faulty = drifted(current, place / "mixed", lambda name: STALE[truth] not in name, fraction=fraction)
    elif kind != "clean":
        truth, patch = draw.choice(tuple((MISTAKES if kind == "mistake" else UNLISTED).items()))
    kernels = [draw.choice(("sdpa", "eager")) for _ in range(2)]
    bad = scored(faulty, ids, draw.choice((1, 2, 8)), patch=patch, kernel=kernels[0])
    good = scored(current, ids, draw.choice((1, 4, 8)), kernel=kernels[1])
    sides = (bad, good) if party == "sampler" else (good, bad)
    evidence = log(place / "log.jsonl", ids, *sides)
    of = examine(Request(evidence=(evidence,), checkpoint=current, previous=previous, sampler="hf-eager"))
    first = of.explanations[0]
    return {
        "number": number,
        "kind": kind,
        "truth": truth,
        "party": party,
        "fraction": fraction,
        "tokens": of.tokens,
        "size": of.size.estimate,
        "legal": of.legal,
        "answer": of.answer,
        "named": list(of.blame.named),
        "at": first.party,
        "first": first.name,
        "share": first.share.estimate,
    }


def verdict(case: Mapping[str, Any]) -> str:
    """What became of a case: right, wrongly named, called noise, not explained or undecided."""
    if case["answer"] != "named":
        return str(case["answer"])
    listed = case["kind"] in {"stale", "mistake"}
    return "right" if listed and (case["named"], case["at"]) == ([case["truth"]], case["party"]) else "wrongly named"


def main() -> int:
    """Examine the cases that are missing, and print a table of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    lines = arguments.folder / f"cases-{arguments.seed}.jsonl"
    cases = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    current = arguments.folder / "current"
    if not current.exists():
        two_layers(current)
    with lines.open("a", encoding="utf-8") as file:
        for number in range(len(cases), arguments.cases):
            cases.append(examined(arguments.folder, arguments.seed, number, current))
            print(json.dumps(cases[-1]), file=file, flush=True)
    print(header(1))
    for kind in KINDS:
        counts = Counter(verdict(case) for case in cases if case["kind"] == kind)
        print(f"{kind:<10}", ", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return int(any(verdict(case) == "wrongly named" for case in cases if case["kind"] in {"clean", "unlisted"}))


if __name__ == "__main__":
    raise SystemExit(main())
