"""Whether the `hf-*` profiles equal transformers bit for bit here: every small model, both profiles, every dtype."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.first_difference import Found, find
from moeparity.engine.forward import forward
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import int_view, same_bits
from tests.checkpoint_factory import make_small
from tests.hf.compare import DTYPES, PROFILES, padded, tokens
from tests.hf.reference import Truth, reference
from tests.small_models import SMALL

MODELS = tuple(name for name in SMALL if name not in {"qwen3_moe_odd", "qwen3_moe_even"})
"""All but those whose expert width torch's grouped GEMM refuses."""

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Tokens [sequences, tokens], with the lengths of the sequences and the side of their padding, if there is any."""

    shape: tuple[int, int]
    lengths: tuple[int, ...] = ()
    side: Side = "left"

    @property
    def mask(self) -> torch.Tensor | None:
        """The attention mask [B, T] int64, or None."""
        return padded(self.lengths, self.shape[1], self.side) if self.lengths else None

    def __str__(self) -> str:
        return f"{self.shape[0]}x{self.shape[1]}" + (f", padded {self.side}" if self.lengths else "")


# In ascending order of length: transformers keeps a dynamic rope's frequencies of the longest call.
CASES = (
    Case(shape=(1, 1)),
    Case(shape=(2, 5)),
    Case(shape=(3, 19)),
    Case(shape=(3, 19), lengths=(19, 1, 6), side="left"),
    Case(shape=(3, 19), lengths=(19, 1, 6), side="right"),
    Case(shape=(2, 300)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A case whose bits are not equal.

    `where` is what of `logits` and the layers' routes differs; `share` is the share of the logits that do, `largest`
    the largest absolute difference of logits. `repeatable` says of either side whether a second run gave the bits of
    the first. `first` is where it starts, looked for in the first such case of a row.
    """

    case: str
    where: tuple[str, ...]
    share: float
    largest: float
    repeatable: Mapping[str, bool]
    first: Found | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model, profile and dtype: how many cases were compared, those that differ, those that a side refused."""

    model: str
    model_type: str
    profile: str
    dtype: str
    equal: int
    different: tuple[Difference, ...]
    refused: Mapping[str, str]


def measure(device: torch.device, budget: Budget, tiny: bool) -> dict[str, Any]:
    """Rows, and the names of those that there was no time for."""
    models = ("llama_dynamic", "qwen3_moe", "deepseek_v3") if tiny else MODELS
    dtypes = ("bf16",) if tiny else tuple(DTYPES)
    cases = CASES[1:4] if tiny else CASES
    rows, not_run = [], []
    # bf16 of all models first, should time run out.
    for dtype, name in product(dtypes, models):
        with tempfile.TemporaryDirectory() as folder:
            for profile in PROFILES:
                if budget.spent:
                    not_run.append(f"{name}, {profile}, {dtype}")
                    continue
                rows.append(_row(name, Path(folder), profile, dtype, device, cases))
    return {"rows": rows, "not_run": not_run, "cases": [str(case) for case in cases]}


def _row(name: str, folder: Path, profile: str, dtype: str, device: torch.device, cases: tuple[Case, ...]) -> Row:
    """The row of a checkpoint that is made where it is not there yet."""
    try:
        checkpoint = folder if (folder / "config.json").exists() else make_small(name, folder)
        return compared(name, checkpoint, profile, dtype, device, cases)
    except Exception as error:  # noqa: BLE001 - see `compared`
        return Row(
            model=name,
            model_type=SMALL[name]["model_type"],
            profile=profile,
            dtype=dtype,
            equal=0,
            different=(),
            refused={"all": _words(error)},
        )


def compared(
    name: str, folder: Path, profile: str, dtype: str, device: torch.device, cases: tuple[Case, ...] = CASES
) -> Row:
    """Both sides on every case; what either side raises is kept in its words."""
    model = open_model(folder, device=device.type, residency="resident")
    different: list[Difference] = []
    refused: dict[str, str] = {}
    for case in cases:
        sides = Sides(model=model, profile=profile, dtype=dtype, case=case)
        try:
            different += _difference(sides, locate=not different)
        except Exception as error:  # noqa: BLE001 - one refusal is a row of the page, and the others go on
            refused[str(case)] = _words(error)
    return Row(
        model=name,
        model_type=SMALL[name]["model_type"],
        profile=profile,
        dtype=dtype,
        equal=len(cases) - len(different) - len(refused),
        different=tuple(different),
        refused=refused,
    )


def _words(error: Exception) -> str:
    """Its kind and the first line it says."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What both sides are asked: ours as `forward` answers, theirs as transformers' own forward does."""

    model: Model
    profile: str
    dtype: str
    case: Case

    @property
    def ids(self) -> torch.Tensor:
        """The tokens of the case."""
        return tokens(self.model.vocab_size, self.case.shape)

    def ours(self, save: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
        """Logits, routes, and the values of the nodes that `save` selects, on the CPU."""
        return forward(
            self.model, self.ids, profile=self.profile, dtype=self.dtype, attention_mask=self.case.mask, save=save
        )

    def theirs(self) -> dict[str, torch.Tensor]:
        """Logits and routes under the same names, on the CPU."""
        truth: Truth = reference(
            self.model.folder,
            self.profile,
            DTYPES[self.dtype],
            self.ids,
            mask=self.case.mask,
            device=self.model.device.type,
        )
        logits, routes = truth
        sparse = [node.layer for node in self.model.graph.nodes if node.op.role.routes]
        values = {"logits": logits}
        for layer, (experts, weights) in zip(sparse, routes, strict=True):
            values |= {f"layers.{layer}.router.ids": experts, f"layers.{layer}.router.weights": weights}
        return values


def _difference(sides: Sides, *, locate: bool) -> Iterator[Difference]:
    """Nothing where all bits are equal."""
    ours, theirs = sides.ours(), sides.theirs()
    where = tuple(key for key in sorted(theirs) if not same_bits(ours[key], theirs[key]))
    if not where:
        return
    logits, truth = ours["logits"], theirs["logits"]
    again = {"ours": (ours, sides.ours()), "transformers": (theirs, sides.theirs())}
    yield Difference(
        case=str(sides.case),
        where=where,
        share=(int_view(logits) != int_view(truth)).double().mean().item(),
        largest=(logits.double() - truth.double()).abs().max().item(),
        repeatable={side: all(same_bits(x[key], y[key]) for key in x) for side, (x, y) in again.items()},
        first=find(sides.model, sides.ours(("**",)), sides.profile, DTYPES[sides.dtype], sides.ids, sides.case.mask)
        if locate
        else None,
    )
