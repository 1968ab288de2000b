"""A recipe made ready: files read and checked, both sides bound, every difference between them a toggle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moeparity.attribution.toggles import Side, Toggle, toggles
from moeparity.errors import Where
from moeparity.graph.bind import bind
from moeparity.graph.profile import Profile, load_profile, overrides
from moeparity.model import Model, checked_tokens, open_model
from moeparity.spec import files, schema
from moeparity.tokens import TokenSet, read_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recipe made ready: both sides bound, and every difference between them as a toggle."""

    path: Path
    recipe: schema.RecipeFile
    model: Model
    tokens: TokenSet
    reference: Side
    candidate: Side
    toggles: list[Toggle]


def prepare(path: Path, *, device: str = "auto") -> Plan:
    """Read and check everything a recipe names, bind both sides, find their differences; runs nothing."""
    recipe = files.read_recipe(path)
    folder = files.beside(recipe.checkpoint, Where(path, recipe.line_of("checkpoint")), "checkpoint")
    token_file = files.beside(recipe.tokens.file, Where(path, recipe.tokens.line_of("file")), "token file")
    tokens = read_tokens(token_file)
    # Opening reads every weight once, so whatever can be wrong without them comes before.
    sides = [(v, load_profile(v.profile, Where(path, v.line))) for v in (recipe.reference, recipe.candidate)]
    model = open_model(folder, device=device)
    checked_tokens(tokens.input_ids, model, str(Where(token_file)))
    reference, candidate = (_side(path, variant, profile, model, tokens) for variant, profile in sides)
    return Plan(
        path=path,
        recipe=recipe,
        model=model,
        tokens=tokens,
        reference=reference,
        candidate=candidate,
        toggles=toggles(reference, candidate),
    )


def _side(path: Path, variant: schema.Variant, profile: Profile, model: Model, tokens: TokenSet) -> Side:
    own = overrides(variant.set, Where(path, variant.line))
    plan = bind(model.graph, profile, variant.dtype or model.dtype, own)
    return Side(plan=plan, micro_batch=min(variant.micro_batch or len(tokens.input_ids), len(tokens.input_ids)))
