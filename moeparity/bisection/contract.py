"""The contract of one side of a recipe: everything that it claims to run. Nothing is run; every weight is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from moeparity.bisection.outline import Outline, outline_recipe
from moeparity.errors import SpecError, Where, display_path
from moeparity.evidence.weights.part import part
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.dtypes import torch_dtype
from moeparity.plan.bind import BoundGraph
from moeparity.plan.choices import choices
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.schedule.settings import settings
from moeparity.plan.sides import REFERENCE
from moeparity.plan.spec import reader
from moeparity.plan.spec.base import Side
from moeparity.plan.spec.schema import RecipeFile, Variant
from moeparity.progress import Callback, Progress
from moeparity.ranks.contract import (
    Contract,
    EnvironmentClaim,
    NodeClaim,
    ProfileClaim,
    SettingsClaim,
    TensorClaim,
    WeightsClaim,
    schedule_words,
    sealed,
)
from moeparity.ranks.environment import ENGINES
from moeparity.ranks.launched import placement_words
from moeparity.ranks.profile import environment_of

_RELEASE = re.compile(r"\d+(\.\d+)+([a-z+.]\w*)*")
_PACKAGES = {"transformers": "transformers", "trtllm": "tensorrt_llm", "megatron": "megatron-core"}
"""Engines by the names of profiles -> packages, where these are other words."""


def contract_of(path: Path, side: Side, environment: Path | None = None, progress: Callback | None = None) -> Contract:
    """What a side of a recipe claims to run. `environment` is the folder of a job's journals, whose environment report
    becomes part of it.

    Raises MoeparityError for a recipe that can't be bound, and for a side that is no engine's: a trace, one with
    faults, or one that runs a user's functions.
    """
    recipe = reader.read_recipe(path)
    variant = recipe.variants[0 if side == REFERENCE else 1]
    _refuse(path, side, variant)
    outline = outline_recipe(path)
    plan = outline.plans[0 if side == REFERENCE else 1]
    where = Where(path, variant.line)
    profile = _profile(outline, plan, variant, where)
    folder = reader.find_file(recipe.checkpoint, Where(path, recipe.line_of("checkpoint")), "checkpoint")
    fields = dict(environment_of(environment)) if environment is not None else _version(profile)
    return Contract(
        recipe=display_path(path),
        side=side,
        model_type=outline.graph.model_type,
        weights=_weights(folder, recipe, plan, progress),
        environment=sealed(EnvironmentClaim(digest="", fields=fields)),
        profile=profile,
        placement=sealed(SettingsClaim(digest="", settings=placement_words(variant.placement.model_dump()))),
        schedule=sealed(
            SettingsClaim(
                digest="", settings=schedule_words(settings(variant.schedule, variant.micro_batch, None, where))
            )
        ),
    )


def _refuse(path: Path, side: Side, variant: Variant) -> None:
    what = (
        "a trace" if variant.trace is not None else "faults" if variant.faults else "functions" if variant.impl else ""
    )
    if what:
        raise SpecError(
            f"{Where(path, variant.line)}: the {side} is made of {what}, which no engine can be held to. Name a side "
            "that is a profile, with what it sets."
        )


def _profile(outline: Outline, plan: BoundGraph, variant: Variant, where: Where) -> ProfileClaim:
    engine = load_profile(variant.profile, where).engine
    nodes = {
        node.name: NodeClaim(op=node.op.name, choices={c.name: c.values[0] for c in choices(node, (plan,))})
        for node in outline.graph.nodes
    }
    claim = ProfileClaim(
        digest="",
        name=variant.profile,
        engine="" if engine is None else engine.name,
        version="" if engine is None else engine.version,
        dtype=plan.dtype,
        phases=tuple(str(phase) for phase in plan.phases),
        nodes=nodes,
    )
    return sealed(claim)


def _version(profile: ProfileClaim) -> Mapping[str, str]:
    """The engine's version as an environment report has it; nothing where the profile names no release of a package."""
    package = _PACKAGES.get(profile.engine, profile.engine)
    known = package in (*ENGINES, "transformers") and _RELEASE.fullmatch(profile.version)
    return {f"version.{package}": profile.version} if known else {}


def _weights(folder: Path, recipe: RecipeFile, plan: BoundGraph, progress: Callback | None) -> WeightsClaim:
    """Every tensor that the graph takes, as the side holds it: rounded to the dtype that it runs in."""
    model = open_model(folder, device="cpu", synthetic=recipe.synthetic, progress=progress, check_weights=False)
    claims = {}
    names = _kept(model)
    for done, (name, keeps) in enumerate(names.items(), 1):
        tensor = model.weights.checkpoint.tensor(name).to(torch_dtype("fp32" if keeps else plan.dtype))
        own = part(name, tensor)
        claims[name] = TensorClaim(dtype=own.dtype, shape=own.shape, bits=f"{own.total:016x}")
        if progress is not None:
            progress(
                Progress(step="sums of the weights", at=name, done=done, total=len(names), work=done, unit="tensors")
            )
    return sealed(replace(WeightsClaim(digest="", tensors=claims)))


def _kept(model: Model) -> dict[str, bool]:
    """The tensors of a model's graph, and whether they stay fp32 whatever the side runs in."""
    refs = (ref for node in model.graph.nodes for ref in node.weights.values())
    return {name: ref.keep_fp32 for ref in refs for name in ref.names}
