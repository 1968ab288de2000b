"""What a caller may ask for beyond the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moeparity.bisection.real_ranks.data import SIMULATED, RanksKind
from moeparity.plan.engine_profile import Profile
from moeparity.plan.schedule.steps import Phase
from moeparity.plan.spec import recipe_schema
from moeparity.plan.spec.base import By
from moeparity.plan.spec.overrides import Override
from moeparity.plan.spec.variant_schema import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedPair:
    """Two sides that no file of a recipe states: as variants, with their profiles. temperature: of the sampler, None:
    the recipe's.
    """

    variants: tuple[Variant, Variant]
    profiles: tuple[Profile, Profile]
    temperature: float | None = None

    def of_recipe(self, recipe: recipe_schema.RecipeFile) -> dict[str, Any]:
        """What they replace in a recipe."""
        tokens, (reference, candidate) = recipe.tokens, self.variants
        if tokens.sample is not None and self.temperature is not None:
            sample = tokens.sample.model_copy(update={"temperature": self.temperature})
            tokens = tokens.model_copy(update={"sample": sample})
        return {"reference": reference, "candidate": candidate, "tokens": tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller may ask for beyond the recipe; None and () leave the recipe as it is.

    allow_code: lets a recipe's `impl:` run, which is any Python code. memory_limit: bytes that a pass may take; None:
    what is available, infinity: any number. overrides: replace settings of the recipe's sides. attribution: if False
    only the two sides run, without toggles, blocks, floor, oracle, forced routes, shares and local errors. phases: for
    which both sides are bound besides those of their own schedules. digests: take one of each node's values. ranks:
    whether placed sides also run on the ranks of a live job.
    """

    by: By | None = None
    split: int | None = None
    swap: tuple[str, ...] = ()
    floor: bool | None = None
    oracle: bool | None = None
    replay: bool | None = None
    envelope: int | None = None
    attribute: bool | None = None
    allow_code: bool = False
    memory_limit: float | None = None
    overrides: tuple[Override, ...] = ()
    attribution: bool = True
    phases: tuple[Phase, ...] = ()
    digests: bool = False
    sides: LaunchedPair | None = None
    ranks: RanksKind = SIMULATED

    def applied(self, recipe: recipe_schema.RecipeFile) -> recipe_schema.RecipeFile:
        """The recipe with these options in place of its own settings."""
        choices: dict[str, Any] = {"by": self.by, "split": self.split, "floor": self.floor, "oracle": self.oracle}
        choices |= {"replay": self.replay, "envelope": self.envelope, "attribute": self.attribute}
        update = {key: value for key, value in choices.items() if value is not None}
        update["swap"] = [*recipe.swap, *self.swap]
        if not self.attribution:
            update |= {"split": 0, "swap": [], "envelope": 0, "spikes": None}
            update |= dict.fromkeys(("floor", "oracle", "replay", "attribute"), False)
        for override in self.overrides:
            recipe = override.apply(recipe)
        if self.sides is not None:
            update |= self.sides.of_recipe(recipe)
        return recipe.model_copy(update=update)
