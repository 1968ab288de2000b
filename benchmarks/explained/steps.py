"""Runs of `generate` and padded batches of transformers, patched in one place: what explain says from the trace alone.

    python -m benchmarks.explained.steps --seed 20261124

A seed draws models, layers, prompts and the side of padding; each patch stands in all steps of decoding, in one of
them, and in a padded batch. Right is: the patched node alone is named, in the patched forwards alone, with the words of
the patch; of a patch that no file lists, that nothing that was tried gives its bits.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.explained.program import with_forward
from moeparity.evidence.explain.report import Explained
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.inputs.machine import cpu_name
from tests.checkpoint_factory import make_small
from tests.evidence.recorded import recorded
from tests.evidence.traced import generated, uneven
from tests.hf.reference import load

MODELS = ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3")
NORMS = ("qwen3_moe", "mixtral", "deepseek_v3")
SEED = 20261124
NEW = 4
"""Forwards of a run of `generate`: the prompts, and steps."""

Change = Callable[[Any, dict[str, Any], Callable[..., Any], int], Any]
"""Of a module, its arguments by name (`x` the first), its own forward and its layer, what it gives instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A change of a module, the node that shows it, and words that an answer must have (none: no file lists it).

    padded: whether it may stand in a padded batch, too. lasts: whether later steps read what it left.
    """

    module: str
    node: str
    words: tuple[str, ...]
    change: Change
    models: tuple[str, ...] = MODELS
    padded: bool = True
    lasts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A patch as it is drawn; `forwards` are those that it changes."""

    name: str
    patch: Patch | None
    model: str
    profile: str
    layer: int
    lengths: tuple[int, ...]
    at_left: bool
    forwards: tuple[int, ...]

    @property
    def is_padded(self) -> bool:
        """Whether it is one forward over a padded batch."""
        return self.forwards == (0,)


def _ahead(_: Any, arguments: dict[str, Any], forward: Callable[..., Any], __: int) -> Any:
    x, positions = arguments.values()
    return forward(x, positions + 1)


def _moved(by: int) -> Change:
    def change(_: Any, arguments: dict[str, Any], forward: Callable[..., Any], __: int) -> Any:
        mask = arguments["attention_mask"]
        columns = (torch.arange(mask.shape[1]) - by).clamp(0, mask.shape[1] - 1)
        return forward(**{**arguments, "attention_mask": mask[:, columns]})

    return change


def _all_seen(_: Any, arguments: dict[str, Any], forward: Callable[..., Any], __: int) -> Any:
    return forward(**{**arguments, "attention_mask": torch.ones_like(arguments["attention_mask"])})


def _stale(_: Any, arguments: dict[str, Any], forward: Callable[..., Any], layer: int) -> Any:
    """The newest key of the cache is the one before it."""
    keys = arguments["past_key_values"].layers[layer].keys
    keys[:, :, -1] = keys[:, :, -2]
    return forward(**arguments)


def _doubled(_: Any, arguments: dict[str, Any], forward: Callable[..., Any], __: int) -> Any:
    return forward(arguments["x"]) * 2


def _left_out(_: Any, arguments: dict[str, Any], __: Callable[..., Any], ___: int) -> Tensor:
    x: Tensor = arguments["x"]
    return x.clone()


def _rounded_once(module: Any, arguments: dict[str, Any], _: Callable[..., Any], __: int) -> Tensor:
    x: Tensor = arguments["x"].float()
    y = module.weight.float() * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.variance_epsilon))
    rounded: Tensor = y.to(arguments["x"].dtype)
    return rounded


def _clipped(_: Any, arguments: dict[str, Any], forward: Callable[..., Any], __: int) -> Any:
    out = forward(arguments.pop("x"), *arguments.values())
    return out.clamp(max=float(out.float().quantile(0.9)))


NORM = "model.layers.{i}.post_attention_layernorm"
PATCHES = {
    "positions one ahead": Patch(
        module="model.rotary_emb", node="rotary", words=("rope-offset(offset=1)",), change=_ahead
    ),
    "mask moved by 1": Patch(module="model", node="attend", words=("mask-shifted(offset=1)",), change=_moved(1)),
    "mask moved by -1": Patch(module="model", node="attend", words=("mask-shifted(offset=-1)",), change=_moved(-1)),
    "padding seen": Patch(module="model", node="attend", words=("padding-seen",), change=_all_seen),
    "values doubled": Patch(
        module="model.layers.{i}.self_attn.v_proj", node="v_proj", words=("weights-scaled", "factor=2.0"),
        change=_doubled, models=("qwen3_moe", "mixtral"),
    ),
    "norm left out": Patch(module=NORM, node="moe.norm", words=("norm-missing",), change=_left_out),
    "norm rounded once": Patch(
        module=NORM, node="moe.norm", words=("normalized=fp32",), change=_rounded_once, models=NORMS
    ),
    "experts' sum clipped": Patch(module="model.layers.{i}.mlp.experts", node="moe.combine", words=(), change=_clipped),
    "stale key": Patch(
        module="model.layers.{i}.self_attn", node="attend", words=(), change=_stale, padded=False, lasts=True
    ),
}  # fmt: skip


def cases(seed: int) -> Iterator[Case]:
    """Each patch in all steps, in one step and in a padded batch, and runs that nobody patched."""
    draw = Random(seed)  # noqa: S311
    for name, patch in PATCHES.items():
        step = draw.randrange(1, NEW)
        last = range(step, NEW) if patch.lasts else (step,)
        for forwards in (tuple(range(1, NEW)), tuple(last), *([(0,)] if patch.padded else [])):
            yield _case(draw, name, patch, forwards, draw.choice(patch.models))
    for model in MODELS:
        yield _case(draw, "none", None, (), model)
        yield _case(draw, "none", None, (0,), model)


def _case(draw: Random, name: str, patch: Patch | None, forwards: tuple[int, ...], model: str) -> Case:
    lengths = tuple(draw.sample(range(2, 12), draw.choice([2, 3])))
    return Case(
        name=name,
        patch=patch,
        model=model,
        profile=draw.choice(["hf-eager", "hf-default"]),
        layer=draw.choice([1] if model == "mixtral" else [1, 2]),
        lengths=lengths,
        at_left=forwards != (0,) or draw.random() < 0.5,
        forwards=forwards,
    )


def said_of(case: Case, checkpoint: Path, folder: Path) -> Explained:
    """Capture and explain."""
    program: Any = copy.deepcopy(load(checkpoint, case.profile, torch.bfloat16))
    ids, mask = uneven(case.lengths, at_left=case.at_left, seed=len(case.name))
    if case.patch is not None:
        _plant(program, case, case.patch)
    with recorded(folder), torch.no_grad():
        if case.is_padded:
            program(ids, attention_mask=mask, use_cache=False)
        else:
            generated(program, ids, mask, new=NEW)
    return explain_trace(ExplainRequest(trace=folder, checkpoint=checkpoint, profile=case.profile))


def _plant(program: Any, case: Case, patch: Patch) -> None:
    module, number = program.get_submodule(patch.module.format(i=case.layer)), [-1]
    program.register_forward_pre_hook(lambda *_: number.__setitem__(0, number[0] + 1))
    forward = module.forward

    def patched(_: Any, *args: Any, **kwargs: Any) -> Any:
        if number[0] not in case.forwards or (patch.lasts and number[0] != case.forwards[0]):
            return forward(*args, **kwargs)
        names = ("x", *(f"x{place}" for place in range(1, len(args))))[: len(args)]
        return patch.change(module, {**dict(zip(names, args, strict=True)), **kwargs}, forward, case.layer)

    with_forward(module, patched)


def verdict(case: Case, result: Explained) -> tuple[str, str]:
    """`right`, `missed` or `innocent`, and what was said."""
    nodes = [part for part in result.nodes if not part.as_started]
    says = "; ".join(f"{part.node} {part.forwards}: {part.matches[0] if part.explained else 'none'}" for part in nodes)
    if case.patch is None:
        return "innocent" if nodes else "right", says or "-"
    where = "rotary" if case.patch.node == "rotary" else f".{case.patch.node}"
    foreign = [part for part in nodes if not part.node.endswith(where) or not {*part.forwards} <= {*case.forwards}]
    if foreign:
        return "innocent", says
    words = case.patch.words
    fits = [all(word in f"{part.matches[0]}" for word in words) if words else not part.explained for part in nodes]
    wherever = {number for part in nodes for number in part.forwards}
    return "right" if nodes and all(fits) and wherever == {*case.forwards} else "missed", says or "-"


def main() -> int:
    """Run it; exit 1 where an innocent node is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explained.steps", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="", help="cases whose patch or model has this text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    verdicts: list[str] = []
    print(f"{cpu_name()}, one thread, torch {torch.__version__}, {datetime.now(UTC):%Y-%m-%d}, seed {options.seed}")
    print("\n| patch | model | profile | forwards | sequences | verdict | it says |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="explained-steps-") as folder:
        for number, case in enumerate(cases(options.seed)):
            if options.only not in f"{case.name} {case.model}":
                continue
            checkpoint = Path(folder) / case.model
            if not checkpoint.exists():
                make_small(case.model, checkpoint)
            start = time.process_time()
            judged, says = verdict(case, said_of(case, checkpoint, Path(folder) / str(number)))
            verdicts.append(judged)
            print(_row(case, judged, says), f"{time.process_time() - start:.1f} s", flush=True)
    print("\n" + ", ".join(f"{verdicts.count(word)} {word}" for word in ("right", "missed", "innocent")))
    return int("innocent" in verdicts)


def _row(case: Case, judged: str, says: str) -> str:
    side = "left" if case.at_left else "right"
    where = f"padded at the {side}" if case.is_padded else ", ".join(map(str, case.forwards)) or "-"
    cells: Sequence[object] = (case.name, case.model, case.profile, where, len(case.lengths), judged, says)
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())
