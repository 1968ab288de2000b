"""What lockstep saves: N variants in one pass, against the same N variants one after the other.

Both run in this process, on the same resident weights and with the same threads, in turn; the best of some repeats
counts. Two settings: trials that differ from the reference in one late layer each, which share most of their work, and
trials that differ from layer 0 on, which share next to nothing and show what lockstep itself costs.

Exits with 1 when a pass reads a weight more than once, or when lockstep is slower than separate forwards.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
import torch
from safetensors.torch import save_file

from benchmarks.turns import header, settle
from moeparity.engine.lockstep import Counts, run
from moeparity.engine.walker import Walker
from moeparity.errors import Where
from moeparity.inputs.model import Model, open_model
from moeparity.ops.attribute import Value
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.schedule.steps import MicroBatches

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, TOP_K, WIDTH, VOCAB = 12, 512, 8, 2, 64, 32, 4, 192, 4096
SEQUENCES, TOKENS = 2, 128

SITES = (
    "attention.rope:products",
    "attention.attend:scores",
    "attention.attend:probabilities",
    "moe.experts:activation",
    "moe.router:weights",
    "moe.combine:accumulate",
)
LATE: list[dict[str, Value]] = [{f"layers[{i}].{site}": "fp32"} for i in (-2, -1) for site in SITES]
EARLY: list[dict[str, Value]] = [{f"layers[0].{site}": dtype} for dtype in ("fp32", "fp16") for site in SITES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One setting: seconds of both ways, and kernel calls done, without sharing, and as the graph alone allows."""

    lockstep: float
    separate: float
    evaluations: int
    naive: int
    ideal: int


def main() -> int:
    """Measure both settings, print them, and judge."""
    options = _options()
    torch.set_num_threads(options.threads)
    print(header(options.threads))
    print(f"{SEQUENCES} x {TOKENS} tokens, {LAYERS} layers of {EXPERTS} experts")
    with tempfile.TemporaryDirectory() as folder:
        used = write_checkpoint(Path(folder))
        read = bytes_of_a_pass(Path(folder))
        print(f"weights: {read / 1e6:.1f} MB read in a pass of 14 variants, {used / 1e6:.1f} MB in the file")
        model = open_model(folder, device="cpu", residency="resident")
        faster = True
        for name, trials in (("one late layer each", LATE), ("from layer 0 on", EARLY)):
            measured = measure(model, walkers(model, trials), options.repeats)
            faster &= measured.lockstep <= measured.separate
            show(name, measured)
    return 0 if read == used and faster else 1


def show(name: str, measured: Measured) -> None:
    """Print one setting."""
    print(f"{name}: lockstep {measured.lockstep:.2f} s, separate {measured.separate:.2f} s, ", end="")
    print(f"ratio {measured.lockstep / measured.separate:.2f}; ", end="")
    print(
        f"evaluations {measured.evaluations} of {measured.naive} ({measured.evaluations / measured.naive:.2f}), ",
        end="",
    )
    print(f"{measured.ideal} by the graph alone")


def walkers(model: Model, trials: Sequence[dict[str, Value]]) -> list[Walker]:
    """Reference, candidate (all trials' choices at once) and one variant per trial."""
    together = {address: value for trial in trials for address, value in trial.items()}
    sides = {"reference": {}, "candidate": together} | {f"trial {i}": trial for i, trial in enumerate(trials)}
    where = Where(Path(__file__))
    profile = load_profile("hf-eager", where)
    return [
        Walker(
            name=name,
            plan=bind(model.graph, profile, model.dtype, overrides(overrides_of_side, where)),
            schedule=MicroBatches(SEQUENCES),
        )
        for name, overrides_of_side in sides.items()
    ]


def measure(model: Model, variants: list[Walker], repeats: int) -> Measured:
    """The best of some repeats of either way, in turn."""
    counts, _ = timed(model, variants)
    lockstep, separate = [], []
    for _ in range(repeats):
        lockstep.append(timed(model, variants)[1])
        separate.append(sum(timed(model, [variant])[1] for variant in variants))
    return Measured(
        lockstep=min(lockstep),
        separate=min(separate),
        evaluations=sum(counts.evaluations.values()),
        naive=len(model.graph.nodes) * len(variants),
        ideal=ideal_evaluations(model, variants),
    )


def timed(model: Model, variants: list[Walker]) -> tuple[Counts, float]:
    """One pass and its seconds."""
    ids = tokens(model.vocab_size).to(model.device)
    settle(model.device)
    started = time.perf_counter()
    counts = run(variants, model.weights, ids, [])
    settle(model.device)
    return counts, time.perf_counter() - started


def ideal_evaluations(model: Model, variants: list[Walker]) -> int:
    """The reference once, and of every other variant the nodes it changes with all that follow from them.

    Bits that happen to agree again, and nodes that two variants change alike, can make the true number smaller.
    """
    reference, *others = variants
    total = len(model.graph.nodes)
    for trial in others:
        changed = {n.name for n in model.graph.nodes if trial.plan.active(n) != reference.plan.active(n)}
        total += len(changed.union(*(nx.descendants(model.graph.digraph, name) for name in changed)))
    return total


def bytes_of_a_pass(folder: Path) -> int:
    """Bytes taken from the file by one streamed pass of all late variants."""
    model = open_model(folder, device="cpu", residency="stream")
    return run(walkers(model, LATE), model.weights, tokens(model.vocab_size), []).bytes_read


def tokens(vocab: int) -> torch.Tensor:
    """The same token ids every time."""
    return torch.randint(0, vocab, (SEQUENCES, TOKENS), generator=torch.Generator().manual_seed(0))


def write_checkpoint(folder: Path) -> int:
    """A qwen3_moe checkpoint of random bf16 weights; the bytes of its tensors."""
    config = {
        "model_type": "qwen3_moe",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "moe_intermediate_size": WIDTH,
        "intermediate_size": 4 * HIDDEN,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    torch.manual_seed(0)
    tensors = {name: _random(shape) for name, shape in _shapes().items()}
    save_file(tensors, folder / "model.safetensors")
    return sum(tensor.nbytes for tensor in tensors.values())


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}{norm}_layernorm.weight": (HIDDEN,) for norm in ("input", "post_attention")}
        shapes |= {f"{at}self_attn.{norm}_norm.weight": (HEAD_DIM,) for norm in "qk"}
        for projection, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            shapes[f"{at}self_attn.{projection}_proj.weight"] = (heads * HEAD_DIM, HIDDEN)
        shapes[f"{at}self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        shapes[f"{at}mlp.gate.weight"] = (EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            expert_path = f"{at}mlp.experts.{expert}."
            shapes |= {f"{expert_path}{p}_proj.weight": (WIDTH, HIDDEN) for p in ("gate", "up")}
            shapes[f"{expert_path}down_proj.weight"] = (HIDDEN, WIDTH)
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def _random(shape: tuple[int, ...]) -> torch.Tensor:
    mean, std = (1.0, 0.1) if len(shape) == 1 else (0.0, shape[-1] ** -0.5)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(mean, std)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
