"""docs/generated/verified.md: which share of the engine profiles' choices rests on a run; what does not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeparity.errors import Where
from moeparity.ops.attribute import EDGE
from moeparity.ops.registry import OPS
from moeparity.plan.address import role
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.evidence import LOWEST_FIRST
from moeparity.plan.expand import expand
from moeparity.plan.gpu import gpu_rules, on_gpu
from moeparity.plan.graph import Node
from moeparity.plan.rule import UNKNOWN
from moeparity.plan.schedule.steps import Phase
from moeparity.plan.setting import edges_of
from moeparity.plan.spec.variant_schema import Variant
from moeparity.profiles import fidelity
from moeparity.profiles.compare import architectures
from scripts.pages import reasons

QWEN, DEEPSEEK = "qwen3_moe", "deepseek_v3"
MODELS: Mapping[str, tuple[str, ...]] = {
    "vllm": (QWEN, DEEPSEEK),
    "vllm-triton-attention": (QWEN,),
    "vllm-triton-mla": (DEEPSEEK,),
    "sglang": (QWEN, DEEPSEEK),
    "sglang-triton-attention": (QWEN, DEEPSEEK),
    **dict.fromkeys(("trtllm", "megatron", "flashinfer-fused"), (QWEN, DEEPSEEK)),
}
"""The profiles that are counted, each with the models for which it says something of its own."""
GPU = "h100"
PHASES: tuple[Phase, ...] = ("prefill", "decode")
DECIDES = ("rounding", "order", "form")
"""Kinds of choices that are counted: those that compute the same model."""
LEVELS = tuple(reversed(LOWEST_FIRST))

WITHOUT_A_RUN = """
What no run verifies, of all choices, by why:

| profile | model | inside a GEMM | inside attention | opaque | stated, further | not stated, further |
|---|---|---|---|---|---|---|
{rows}

- **Inside a GEMM**, **inside attention**: each with its reason in the next table. What goes in and comes out of a GEMM
  (`inputs`, `output`) is not counted there.
- **Opaque**: sums by atomics, in the order of arrival.
- **Not stated**: defaults of an op, which a profile does not vouch for; its header says what it leaves open.
- **Stated**: in the tables below, each with what was read. Among them: what no kernel could be had of (TensorRT-LLM's
  sources beside those in FlashInfer's wheel: for Qwen3 the kernel of its norms of heads and rotary embedding and the
  softmax router; sgl-kernel's binaries; TransformerEngine's GEMMs, whose operands are handed over in C++), and what has
  no other value to be told from.

Why no run tells what is inside a GEMM or inside attention:

{reasons}
"""

HEAD = """# What the engine profiles rest on

Written by `python -m scripts.pages verified` from `graphs/profiles/` and `moeparity/profiles/evidence.json`.

Each profile is bound in bf16 to the graphs of {models} (`graphs/configs`), as it prefills and
as it decodes, on one rank, with `gpu: h100`. A choice is one attribute of one node of a layer (equal layers count once)
that decides a rounding, an order or a form and is in effect there, with what the profile sets on edges; its level is
the lowest that it has in any layer or phase. *By a run*: `verified`, `verified: vectors` and `verified: ptx` together,
of all choices, and of those that the profile states; *without tensor cores*: of those that it states and that are not
inside of a GEMM's or an attention's kernel. `unknown`: it says nothing of them, or takes them over from another engine.
At commit be61a02 both were 0 %: no rule of these profiles was verified (`git grep -c 'level: verified' be61a02 --
graphs/profiles` names none of them). Before sums on a GPU were stated (9428ac4), `vllm` and `sglang` on qwen3_moe were
at 56 and 54 % by a run, of 149 and 145 choices; with `gpu: h100` a choice that only torch's kernels have (`rows`) is
none.

| profile | model | choices | {levels} | by a run, of all | of those stated | without tensor cores |
|---|---|---|{rules}---|---|---|
{rows}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice of a plan in effect, how sure it is, what that rests on, and by which kernel it could be claimed."""

    node: str
    op: str
    attribute: str
    values: tuple[str, ...]
    level: str
    source: str
    claimable: tuple[str, ...]

    @property
    def by_run(self) -> bool:
        """Whether it rests on a run."""
        return self.level in fidelity.PROVED

    @property
    def is_inside(self) -> bool:
        """Whether it says what happens inside of a kernel that goes through tensor cores."""
        return self.attribute in OPS[self.op].role.inside


def page(_: str = "") -> str:
    """The whole page."""
    counted = {(profile, model): choices(profile, model) for profile, of in MODELS.items() for model in of}
    rows = "\n".join(_row(*key, of) for key, of in counted.items())
    head = HEAD.format(
        models=f"{QWEN} and {DEEPSEEK}", levels=" | ".join(LEVELS), rules="---|" * len(LEVELS), rows=rows
    )
    without = "\n".join(_without(*key, of) for key, of in counted.items())
    inside = [(profile, c) for (profile, _), of in counted.items() for c in of if c.is_inside and not c.by_run]
    why = "\n".join(reasons.table(inside))
    parts = [head.rstrip(), WITHOUT_A_RUN.format(rows=without, reasons=why).rstrip()]
    for profile, models in MODELS.items():
        of_models = [choice for model in models for choice in counted[profile, model]]
        parts += [f"\n## {profile}: what no run verifies\n", *_rest(of_models)]
    return "\n".join((*parts, ""))


def choices(profile: str, model: str) -> list[Choice]:
    """What a profile has in effect on a model, node by node of one layer of each kind."""
    where = Where(Path("--profile"))
    loaded, graph = load_profile(profile, where), expand(Config(architectures()[model]))
    placement = gpu_rules(graph, Variant(profile=profile, gpu=GPU), loaded, where)
    plan = bind(graph, on_gpu(loaded, GPU), "bf16", placement=placement, phases=PHASES)
    engine = "" if loaded.engine is None else loaded.engine.name
    met: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}
    for phase in plan.phases:
        for node, name, value, level, source in _settings(plan.at_phase(phase)):
            met.setdefault((role(node.name), node.op.name, name), []).append((value, level, source))
    return [_choice(*key, stands, engine) for key, stands in met.items()]


def _settings(plan: Plan) -> Iterator[tuple[Node, str, str, str, str]]:
    """Nodes with what decides there: name, value, level and source."""
    ops = {node.name: node.op.name for node in plan.graph.nodes}
    for node in plan.graph.nodes:
        kinds = {attribute.name: attribute.kind for attribute in node.attributes}
        for name in (name for name in plan.active(node) if kinds[name] in DECIDES):
            setting = plan.settings[node.name, name]
            # What a GPU is assumed to do is no profile's word.
            rule = None if setting.rule is None or setting.rule.profile is None else setting.rule
            yield node, name, str(setting.value), UNKNOWN if rule is None else rule.level, rule.source if rule else ""
        for site, consumer in edges_of(plan.graph, node):
            setting = plan.settings[node.name, f"{site}{EDGE}{consumer}"]
            if setting.rule is not None:
                name = f"{site}{EDGE}{ops[consumer]}"
                yield node, name, str(setting.value), setting.level or UNKNOWN, setting.rule.source


def _choice(node: str, op: str, name: str, stands: Sequence[tuple[str, str, str]], engine: str) -> Choice:
    _, level, source = min(stands, key=lambda stand: LOWEST_FIRST.index(stand[1]))
    values = tuple(dict.fromkeys(value for value, _, _ in stands))
    proofs = [fidelity.verified().get((op, name, value), ()) for value in values]
    engine_proofs = [[p.against for p in of if engine and engine in p.against] for of in proofs]
    claimable = tuple(dict.fromkeys(against for of in engine_proofs for against in of)) if all(engine_proofs) else ()
    return Choice(
        node=node, op=op, attribute=name, values=values, level=level, source=source,
        claimable=() if level in fidelity.PROVED else claimable,
    )  # fmt: skip


def _row(profile: str, model: str, choices: Sequence[Choice]) -> str:
    levels = Counter(choice.level for choice in choices)
    stated = [choice for choice in choices if choice.level != UNKNOWN]
    outside = [choice for choice in stated if not choice.is_inside]
    counts = " | ".join(str(levels[level]) for level in LEVELS)
    shares = " | ".join(f"{100 * _by_run(of) / len(of):.0f} %" for of in (choices, stated, outside))
    return f"| `{profile}` | {model} | {len(choices)} | {counts} | {shares} |"


def _by_run(choices: Sequence[Choice]) -> int:
    return sum(choice.by_run for choice in choices)


def _without(profile: str, model: str, choices: Sequence[Choice]) -> str:
    """How many choices rest on no run, by why."""
    open_choices = [choice for choice in choices if not choice.by_run]
    inside = [choice for choice in open_choices if choice.is_inside]
    kernels = [
        sum(OPS[choice.op].role.gemm for choice in inside),
        sum(OPS[choice.op].tokens.mixes for choice in inside),
    ]
    opaque = sum(choice.level == "opaque" for choice in open_choices)
    silent = sum(choice.level == UNKNOWN and choice not in inside for choice in open_choices)
    further = len(open_choices) - len(inside) - opaque - silent
    return f"| `{profile}` | {model} | {' | '.join(map(str, (*kernels, opaque, further, silent)))} |"


def _rest(choices: Sequence[Choice]) -> Iterator[str]:
    """The choices without a run, alike ones in one line, the least sure last."""
    lines: dict[tuple[str, str, str], dict[str, None]] = {}
    for choice in sorted((c for c in choices if not c.by_run), key=lambda c: LEVELS.index(c.level)):
        value = ", ".join(f"{choice.op}:{choice.attribute}={value}" for value in choice.values)
        lines.setdefault((choice.level, _why(choice), "; ".join(choice.claimable)), {})[f"`{value}`"] = None
    yield "| level | choices | why |\n|---|---|---|"
    for (level, why, claimable), names in lines.items():
        may = (
            f" A run of {claimable} has these values: a claim may be made where that is the kernel."
            if claimable
            else ""
        )
        yield f"| {level} | {', '.join(names)} | {_cell(why.rstrip('.') + '.' + may)} |"


_WHY: Mapping[str, str] = {
    "read": "Not run: ",
    "inferred": "Not run, and the source only suggests it: ",
    "opaque": "Cannot be known from outside: ",
    UNKNOWN: "The profile does not state it.",
}


def _why(choice: Choice) -> str:
    if choice.level == UNKNOWN and choice.source:
        return f"Not this engine's: {choice.source}."
    return f"{_WHY[choice.level]}{choice.source}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
