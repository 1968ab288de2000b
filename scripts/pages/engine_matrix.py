"""docs/generated/engine-matrix.md: every pair of engine profiles on the shipped checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import torch

from moeparity.documents.checked import shipped
from moeparity.errors import SpecError
from moeparity.inputs.machine import cpu_name
from moeparity.ops.attribute import Value
from moeparity.plan.rule import NO_ENGINE, UNKNOWN
from moeparity.plan.spec import reader
from moeparity.plan.spec.variant_schema import Placement
from moeparity.plan.toggles import toggles
from moeparity.profiles.compare import statements
from scripts.pages.engine_pairs import (
    FEW,
    MICRO_BATCH,
    OPAQUE,
    SHORT,
    Bench,
    Pair,
    batches,
    draws,
    opened,
    pairs_of,
    same_twice,
)

MODES = (
    "hf-default",
    "megatron-deterministic",
    "sglang-deterministic",
    "sglang-rl-on-policy",
    "torchtitan-batch-invariant",
    "vllm-batch-invariant",
    "vllm-batch-invariant-eager",
    "vllm-eager",
)
"""Profiles on top of another that stand for a whole engine all the same, in another mode; the others are overlays."""
TENSOR = Placement(tensor=4)
FEW_RANKS, MANY_RANKS = Placement(tensor=4, expert=4), Placement(expert=24)
"""For overlays that take effect on several ranks only, or on more than one node of eight."""
SIZES = (1, 32)

HEAD = """# Every pair of engine profiles on the shipped checkpoint

Written by `python -m scripts.pages engine-matrix` (`--check` compares):
{when}, {machine}, torch {torch}, {threads} thread, {seconds:.0f} s of it.

What two engines would differ in if their profiles were all there is to them: no GPU engine was run.
`checkpoints/quickstart` (qwen3_moe, hidden 96, 4 layers, 24 experts, bf16), {sequences} x {length} tokens, micro-batch
{batch}; all profiles of a table walk the graph together in one pass. Another processor gives other digits, a wider
model other values.

- **k3** in nats per token, of {scored} scored tokens. Neither side of most pairs sampled them, so that it is a distance
  here, no estimate of a KL; KL(second || first) over the vocabulary stands beside it.
- **flips**: token-layers with another set of experts.
- **first divergence**: the first node with equal inputs and unequal outputs, and the choices that differ there.
- **most guilty**: the choice of the second engine that alone, taken into the first, costs most KL, on the first {few}
  sequences x {short} tokens; then its share of the whole KL, and how many others alone cost at least half of the whole
  (`+5`). Where there are some, the pair is saturated: rounding noise, once seeded, grows to the same size whichever
  site seeded it, and the name says little. (unknown): the profile of a side is silent there, or takes the value over
  from another engine. (opaque): nobody can know it.
- **unsure**: at how many differing choices a side is `unknown`, or `opaque`. A pair marked `*` adds in the order of
  arrival on a side: this is one draw of it.

`moeparity show engines A B` lists the choices of a pair with their sources; `docs/generated/engines.md` has the
profiles.
"""
SANE = """
## What must be equal is

Run again in a pass of its own, {same} of {all} profiles give the same log-probabilities, bit for bit{others}. Against
itself at micro-batch {batch} ({sequences} x {length} tokens), a profile at other micro-batches gives:
"""
CLAIMS = """
Makers of batch-invariant kernels say that a sequence gets the same bits in any batch. Here that holds for {equal}.
Elsewhere it ends at the node named, and that is torch's own GEMM or attention (`native`): run, and nothing claimed of
it. Its kernel goes by the number of rows, of which an expert has few at micro-batch 1. With the experts' sums written
out (`experts: {{implementation: loop, order: fold_hi}}`), on one rank at micro-batch 1: {written}.

What makes the plain engines depend on the batch is for the most part not in their profiles: splits of the keys and of
K, and kernels of the gate, are chosen by heuristics that no profile states (`Not stated` in
`docs/generated/engines.md`). What is in them are the launch rules of norms and how all-reduces go by the size of a
message: rings cut it into chunks, tables choose another kernel. That is what four ranks of `hf-eager`, `megatron` and
`nemo-rl-dtensor` show.
"""
WRITTEN: Mapping[str, Value] = {
    "layers[*].moe.experts:implementation": "loop",
    "layers[*].moe.experts:order": "fold_hi",
}


def page(_: str = "") -> str:
    """Measure, and the page, some minutes on one thread."""
    torch.set_num_threads(1)
    start = time.process_time()
    single = opened()
    four = replace(single, placement=TENSOR)
    whole, overlays = engines()
    reducing = [name for name in whole if reduces(single, name)]
    ranks = [name for name in reducing if runs(four, name)]
    refused = ", ".join(f"`{name}`" for name in reducing if name not in ranks)
    parts = [
        "\n## One rank\n",
        *matrix(single, whole, pairs := pairs_of(single, whole)),
        *listed(single, pairs),
        "\n## Tensor parallel over four ranks\n",
        f"Engines whose profile states an all-reduce{f'; an op refuses {refused} on four ranks' * bool(refused)}.\n",
        *matrix(four, ranks, pairs := pairs_of(four, ranks)),
        *listed(four, pairs),
        *overlay_table(single, overlays),
        *sanity(single, four, whole, ranks),
    ]
    return head(single, time.process_time() - start) + "\n".join(parts) + "\n"


def engines() -> tuple[list[str], dict[str, str]]:
    """The profiles that stand for a whole engine, and the overlays with what each lies on."""
    read = [reader.read_profile(path) for path in shipped("profiles").values()]
    engine_specs = [spec for spec in read if spec.engine is not None and spec.engine.name != NO_ENGINE]
    whole = [spec.name for spec in engine_specs if spec.extends is None or spec.name in MODES]
    return whole, {spec.name: spec.extends for spec in engine_specs if spec.extends and spec.name not in whole}


def head(bench: Bench, seconds: float) -> str:
    """What was measured, on what."""
    sequences, length = bench.tokens.input_ids.shape
    return HEAD.format(
        when=datetime.now(UTC).date().isoformat(),
        machine=cpu_name(),
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        seconds=seconds,
        sequences=sequences,
        length=length,
        batch=MICRO_BATCH,
        scored=int(bench.tokens.loss_mask.sum()),
        few=FEW,
        short=SHORT,
    )


def reduces(bench: Bench, name: str) -> bool:
    """Whether the profile itself says by which algorithm ranks are added."""
    settings = bench.side(name).plan.settings
    nodes = [node.name for node in bench.model.graph.nodes if node.op.name == "all_reduce"]
    return any(settings[node, "collective"].rule for node in nodes if settings[node, "collective"].value != "none")


def runs(bench: Bench, name: str) -> bool:
    """Whether every op takes the profile on these ranks: torch's grouped GEMM wants rows of whole 16 bytes."""
    with suppress(SpecError):
        return bool(bench.side(name))
    return False


def matrix(bench: Bench, names: Sequence[str], pairs: Sequence[Pair]) -> Iterator[str]:
    """k3 above the diagonal, flips below it."""
    by = {(pair.first, pair.second): pair for pair in pairs}
    drawn = {name for name in names if draws(bench, name)}
    yield "k3 above the diagonal, flips below it.\n"
    yield f"| | | {' | '.join(map(str, range(1, len(names) + 1)))} |"
    yield f"|---|---|{'---|' * len(names)}"
    for i, row in enumerate(names):
        cells = []
        for j, column in enumerate(names):
            pair = by.get((row, column) if i < j else (column, row))
            star = "*" * bool({row, column} & drawn)
            cells.append("-" if pair is None else (_k3(pair) if i < j else f"{pair.flips:.1%}") + star)
        yield f"| {i + 1} | `{row}` | {' | '.join(cells)} |"


def _k3(pair: Pair) -> str:
    return f"{pair.k3:.1e}" if pair.k3 else "0"


COLUMNS = ("first", "second", "k3", "KL", "flips", "first divergence", "most guilty alone", "unsure")


def listed(bench: Bench, pairs: Sequence[Pair]) -> Iterator[str]:
    """A line for each pair."""
    yield from ("", f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}")
    drawn = {name: draws(bench, name) for name in dict.fromkeys(n for pair in pairs for n in (pair.first, pair.second))}
    yield from (line(pair, drawn=drawn[pair.first] or drawn[pair.second]) for pair in pairs)


def line(pair: Pair, *, drawn: bool = False) -> str:
    """One pair as a row."""
    unsure = [f"{pair.unsure} of {pair.choices} unknown"] * bool(pair.unsure)
    unsure += [f"{pair.opaque} opaque"] * bool(pair.opaque)
    numbers = (_k3(pair) + "*" * drawn, f"{pair.kl:.1e}" if pair.kl else "0", f"{pair.flips:.1%}")
    cells = (f"`{pair.first}`", f"`{pair.second}`", *numbers, root(pair), guilty(pair), ", ".join(unsure))
    return f"| {' | '.join(cells)} |"


def root(pair: Pair) -> str:
    """Where a pair first differs."""
    return pair.root or ("all bits equal" if pair.choices else "nothing differs")


def guilty(pair: Pair) -> str:
    """The choice that costs most alone, how much, and how sure it is."""
    if pair.guilty is None:
        return "-" if pair.root is None else "no choice alone reaches the log-probabilities"
    doubts = [level for level in (UNKNOWN, OPAQUE) if level in pair.guilty.levels]
    rivals = f" +{pair.guilty.rivals}" * bool(pair.guilty.rivals)
    return f"{pair.guilty.name} {pair.guilty.share:.0%}{rivals}" + f" ({', '.join(doubts)})" * bool(doubts)


def overlay_table(bench: Bench, overlays: Mapping[str, str]) -> Iterator[str]:
    """Each overlay against the profile it lies on."""
    yield "\n## Overlays, each against the profile it lies on\n"
    yield "One rank, unless the overlay takes effect on several only.\n"
    yield f"| ranks | {' | '.join(COLUMNS)} |"
    yield f"|---|{'---|' * len(COLUMNS)}"
    for overlay, base in overlays.items():
        placement = ranks_of(bench, overlay, base)
        if placement is None:
            yield f"| - | `{base}` | `{overlay}` | {'| ' * (len(COLUMNS) - 3)}no ranks here that both take |"
            continue
        there = replace(bench, placement=placement)
        (pair,) = pairs_of(there, (base, overlay))
        yield f"| {str(placement) or 'one'} {line(pair, drawn=draws(there, overlay) or draws(there, base))}"


def ranks_of(bench: Bench, overlay: str, base: str) -> Placement | None:
    """The ranks on which an overlay is compared: several where it states an all-reduce for so many, or differs on those
    only.
    """
    reducing = any(statement.attribute.endswith("collective") for statement in statements(overlay))
    of_effect: dict[bool, Placement] = {}
    several = (FEW_RANKS, MANY_RANKS)
    for placement in (*several, Placement()) if reducing else (Placement(), *several):
        there = replace(bench, placement=placement)
        if runs(there, base) and runs(there, overlay):
            has_effect = bool(toggles(there.side(base), there.side(overlay)))
            # On one rank an all-reduce of more has no effect, which says nothing of it.
            if has_effect or not reducing or placement in several:
                of_effect.setdefault(has_effect, placement)
    return of_effect.get(True, of_effect.get(False))


def sanity(bench: Bench, four: Bench, whole: Sequence[str], ranks: Sequence[str]) -> Iterator[str]:
    """The same engine twice, and each at other micro-batches."""
    same = same_twice(bench.part(), whole)
    sequences, length = bench.tokens.input_ids.shape
    unequal = ", ".join(f"`{name}`" for name, holds in same.items() if not holds)
    yield SANE.format(
        same=sum(same.values()),
        all=len(same),
        others=f"; not {unequal}" * bool(unequal),
        batch=MICRO_BATCH,
        sequences=sequences,
        length=length,
    ).rstrip("\n")
    single, placed = batches(bench, whole, SIZES), batches(four, ranks, SIZES)
    columns = [f"{where}, micro-batch {size}" for where in ("one rank", "four ranks") for size in SIZES]
    yield f"\n| profile | {' | '.join(columns)} |"
    yield f"|{'---|' * (len(columns) + 1)}"
    for name in whole:
        cells = [_root(single[name, size]) for size in SIZES]
        cells += [_root(placed[name, size]) if name in ranks else "" for size in SIZES]
        yield f"| `{name}` | {' | '.join(cells)} |"
    invariant = [name for name in whole if "invariant" in name or name.startswith(("sglang-det", "sglang-rl"))]
    equal = [name for name in invariant if not any(single[name, s] or placed.get((name, s)) for s in SIZES)]
    moved = [name for name in invariant if name not in equal]
    written = batches(replace(bench, settings=WRITTEN), moved, (1,))
    root_lines = ", ".join(f"`{name}` {_root(node)}" for (name, _), node in written.items())
    yield CLAIMS.format(equal=", ".join(f"`{name}`" for name in equal), written=root_lines).rstrip("\n")


def _root(node: str | None) -> str:
    return "all bits" if node is None else f"from {node}"
