"""The tokens of a recipe held to its model: ids, records, and what a model that gives scores is not asked for."""

from __future__ import annotations

from pathlib import Path

from moeparity.errors import SpecError, Where, display_path
from moeparity.inputs.model import Model, checked_tokens
from moeparity.inputs.tokens import TokenSet
from moeparity.inputs.tokens.images import refuse_images
from moeparity.inputs.tokens.pairs import paired
from moeparity.inputs.tokens.requests import KEY_OF, asks_for, refuse_unknown_ids
from moeparity.inputs.tokens.tokenset import check_fits
from moeparity.metrics.declaration import FORWARD_KL
from moeparity.metrics.registry import METRICS
from moeparity.plan.bound import Plan
from moeparity.plan.spec import recipe_schema


def checked(tokens: TokenSet, recipe: recipe_schema.RecipeFile, model: Model, path: Path) -> TokenSet:
    """The tokens as the model scores them. Raises TokensError for ids or records that do not fit it; SpecError where a
    model that gives scores is to sample, or to do anything but score whole sequences.
    """
    where = Where(path.parent / recipe.tokens.file)
    checked_tokens(tokens.input_ids, model, str(where))
    refuse_images(tokens.images, tokens.input_ids, model.graph, where)
    check_fits(tokens, model.graph, where)
    refuse_unknown_ids(tokens.requests, tokens.input_ids, tokens.attention_mask, model.vocab_size, where)
    if model.graph.pairs:
        _refuse_steps_of_pairs(recipe, path)
    return paired(tokens, model.graph, where)


def refuse_unasked(tokens: TokenSet, plan: Plan, where: Where, file: Path) -> None:
    """Raises SpecError for a side of this plan, written at `where`, that applies what no request asks for."""
    replaced = {name for region in plan.replaced().values() for name in region.nodes}
    for node in plan.graph.nodes:
        for attribute in () if node.name in replaced else node.op.tokens.applies(plan.active(node)):
            if not asks_for(tokens.requests, attribute):
                raise SpecError(
                    f"{where}: {node.name}:{attribute} is applied, and no line of {display_path(file)} asks for it. "
                    f"Write {KEY_OF[attribute]} into its lines (docs/tokens.md), or set `ignored`."
                )


def _refuse_steps_of_pairs(recipe: recipe_schema.RecipeFile, path: Path) -> None:
    gives = f"{display_path(path.parent / recipe.checkpoint)} gives one score for each sequence"
    metric = METRICS[recipe.reference_gate.metric or str(recipe.reference_gate.recorded)]
    if metric.estimates.startswith(FORWARD_KL):
        raise SpecError(
            f"{Where(path, recipe.line_of('gate'))}: {metric.name} estimates a KL from what was sampled, and {gives}: "
            "the chosen sequence of a pair is not drawn from it. Gate `bt_loss`, the difference of the mean losses, or "
            "`mean_abs_delta`, the mean of their differences."
        )
    if recipe.tokens.sample is not None:
        where = Where(path, recipe.tokens.line_of("sample"))
        raise SpecError(
            f"{where}: {gives}, so nothing can be sampled from it. Write `sampled_from:` in place of `sample:`."
        )
    if recipe.spikes is not None:
        where = Where(path, recipe.line_of("spikes"))
        raise SpecError(f"{where}: {gives}, so no token can spike. Leave `spikes:` out.")
    for variant in recipe.variants:
        if variant.schedule is not None or variant.trace is not None:
            key = "trace" if variant.schedule is None else "schedule"
            where = Where(path, variant.line_of(key))
            raise SpecError(f"{where}: {gives}, which is computed of whole sequences alone. Write `micro_batch:` here.")
