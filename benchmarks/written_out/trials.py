"""Every trial of a recipe as bisect runs it, and as the recipe that a second implementation writes of it, run alone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.written_out.plain import CannotBeWrittenError, Printed, Writer
from moeparity.bisection.measures import summarise
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import passes_over, ready
from moeparity.bisection.prepare import prepare
from moeparity.bisection.study import Study
from moeparity.bisection.trials import alone, restored, toggle_trials, walker
from moeparity.engine.view import NodeView
from moeparity.engine.walker import WalkerName
from moeparity.errors import SpecError
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from moeparity.plan.sides import CANDIDATE, Side
from moeparity.plan.toggles import mixed

CODE = Options(allow_code=True)
SUBSETS = 6
"""How many sets of toggles are drawn of a recipe."""


@dataclass(slots=True)
class Kept:
    """The logits of every walker, and what is scored where that is something else."""

    names: tuple[str, ...]
    parts: dict[tuple[WalkerName, str], list[torch.Tensor]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        for name in view.outputs if view.node.name in self.names else ():
            self.parts.setdefault((name, view.node.name), []).append(view.tensor(name).clone())

    def of(self, name: WalkerName) -> list[torch.Tensor]:
        """What was kept of a walker."""
        return [torch.cat(self.parts[name, node]) for node in self.names]


@dataclass(frozen=True, slots=True)
class Mixture:
    """A trial by name: the mixture that bisect runs (None: an op refuses it), and what writes a recipe of it."""

    name: str
    side: Side | None
    write: Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Compared:
    """A trial, and whether it is the recipe that was written of it.

    `outcome` is `equal`, `other bits`, `refused by both`, `refused by one`, or `cannot be written`.
    """

    trial: str
    outcome: str
    written: Mapping[str, Any] | None = None


def compared(path: Path, model: Model, subsets: int = SUBSETS) -> Iterator[Compared]:
    """Every trial of a recipe, and some `subsets` of its toggles, beside the recipes that are written of them.

    Each of these recipes is run when its trial is asked for, and once if several trials are the same recipe.
    """

    def opener(*_: object, **__: object) -> Model:
        return model

    study, observed = passes_over(ready(path, device="cpu", options=CODE, opener=opener), None)
    report = summarise(study, observed)
    recipe = json.loads(path.read_text("utf-8"))
    printed = [Printed(row.name, row.parent, row.kind) for row in report.toggles]
    writer = Writer(recipe, path.parent, model.graph, printed)
    swaps = [swap.selector for swap in report.swaps if swap.toggle is not None]
    mixtures = [*_trials(study, writer), *_swapped(study, writer, swaps), *_subsets(study, writer, subsets)]
    graph = model.graph
    logits = Kept(tuple(dict.fromkeys((graph.output, graph.scores))))
    # All in one pass, as bisect runs them.
    study.passes().run([walker(study, m.name, m.side) for m in mixtures if m.side is not None], [logits])
    run_alone = _Alone(path, recipe, logits.names, opener)
    yield from (_compared(mixture, logits, run_alone) for mixture in mixtures)


def _trials(study: Study, writer: Writer) -> Iterator[Mixture]:
    trials, _ = toggle_trials(study, study.trial_toggles)
    for toggle in study.trial_toggles:
        for key, write in ((alone(toggle), writer.alone), (restored(toggle), writer.restored)):
            side = trials[key].side if key in trials else None
            yield Mixture(f"{key.kind} {toggle.name}", side, partial(write, [toggle.name]))


def _swapped(study: Study, writer: Writer, selectors: list[str]) -> Iterator[Mixture]:
    for selector in selectors:
        block = study.swaps[selector][1]
        assert block is not None
        trials, _ = toggle_trials(study, [block])
        side = trials[restored(block)].side if restored(block) in trials else None
        yield Mixture(f"swapped {selector}", side, partial(writer.swapped, selector))


def _subsets(study: Study, writer: Writer, count: int) -> Iterator[Mixture]:
    """Some sets of toggles, put into the reference, and the same mixture made of the candidate."""
    whole = [toggle for toggle in study.trial_toggles if toggle.parent is None]
    draw = random.Random(len(whole))  # noqa: S311
    for _ in range(count if len(whole) > 2 else 0):
        members = draw.sample(whole, draw.randint(2, len(whole) - 1))
        rest = [toggle for toggle in whole if toggle not in members]
        names = [toggle.name for toggle in members]
        ways = (
            ("reference", study.reference, members, study.candidate),
            ("candidate", study.candidate, rest, study.reference),
        )
        for base, side, moved, source in ways:
            mixture = None
            with suppress(SpecError):
                mixture = mixed(side, moved, source)
            yield Mixture(f"{names}, made of the {base}", mixture, partial(writer.alone, names))


class _Alone:
    """Runs written variants alone, each in a recipe of its own, and keeps what they gave."""

    def __init__(
        self, path: Path, recipe: Mapping[str, Any], names: tuple[str, ...], opener: Callable[..., Model]
    ) -> None:
        self.plain, self.names, self.opener = path.with_name("written.yaml"), names, opener
        self.head = {key: recipe[key] for key in ("kind", "checkpoint", "tokens", "gate")}
        self.logits: dict[str, list[torch.Tensor] | None] = {}

    def of(self, variant: Mapping[str, Any]) -> list[torch.Tensor] | None:
        """The logits of a variant; None where it is refused."""
        text = json.dumps(self.head | {"reference": variant, "candidate": variant})
        if text not in self.logits:
            self.plain.write_text(text, "utf-8")
            self.logits[text] = None
            with suppress(SpecError):
                self.logits[text] = self._run()
        return self.logits[text]

    def _run(self) -> list[torch.Tensor]:
        study = prepare(self.plain, device="cpu", options=replace(CODE, attribution=False), opener=self.opener)
        logits = Kept(self.names)
        study.passes().run([walker(study, CANDIDATE, study.candidate)], [logits])
        return logits.of(CANDIDATE)


def _compared(mixture: Mixture, logits: Kept, run_alone: _Alone) -> Compared:
    try:
        written = mixture.write()
    except CannotBeWrittenError:
        return Compared(mixture.name, "cannot be written")
    alone_logits = run_alone.of(written)
    if alone_logits is None:
        return Compared(mixture.name, "refused by both" if mixture.side is None else "refused by one", written)
    if mixture.side is None:
        return Compared(mixture.name, "refused by one", written)
    pairs = zip(logits.of(mixture.name), alone_logits, strict=True)
    equal = all(same_bits(ours, theirs) for ours, theirs in pairs)
    return Compared(mixture.name, "equal" if equal else "other bits", written)
