"""The contract of one side of a recipe: everything that it claims to run. Nothing is run; every weight is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from moeparity.errors import SpecError, Where, display_path
from moeparity.evidence.weights.part import part
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.dtypes import torch_dtype
from moeparity.plan.bound import Plan
from moeparity.plan.choices import choices
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.schedule.settings import possible_phases, settings
from moeparity.plan.sides import REFERENCE, bound_side, cases_of
from moeparity.plan.spec import reader
from moeparity.plan.spec.base import Side
from moeparity.plan.spec.profile_schema import Engine
from moeparity.plan.spec.variant_schema import Variant
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
from moeparity.ranks.job_profile import environment_of
from moeparity.ranks.launched import placement_words

_RELEASE = re.compile(r"\d+(\.\d+)+([a-z+.]\w*)*")
_PACKAGES = {"transformers": "transformers", "vLLM": "vllm", "SGLang": "sglang", "TensorRT-LLM": "tensorrt_llm"}
"""The name of an engine, as profiles give it -> the package whose version an environment report has."""


def contract_of(path: Path, side: Side, environment: Path | None = None, progress: Callback | None = None) -> Contract:
    """What one side of a recipe claims to run. `environment` is a folder of a job's journals; its environment report
    becomes part of the contract.

    Raises MoeparityError for a recipe that can't be bound, and for a side that no engine can run: a trace, a side with
    planted faults, or one with users' functions.
    """
    recipe = reader.read_recipe(path)
    variant = recipe.variants[0 if side == REFERENCE else 1]
    where = Where(path, variant.line)
    _refuse(side, variant, where)
    profile, schedule = (
        load_profile(variant.profile, where),
        settings(variant.schedule, variant.micro_batch, None, where),
    )
    fields = None if environment is None else environment_of(environment)
    folder = reader.find_file(recipe.checkpoint, Where(path, recipe.line_of("checkpoint")), "checkpoint")
    adapter = reader.find_adapter(recipe, path)
    model = open_model(
        folder, device="cpu", synthetic=recipe.synthetic, progress=progress, values=False, adapter=adapter
    )
    cases = cases_of(model.graph, model.dtype, possible_phases(schedule), [variant], [profile], where)
    plan = bound_side(model.graph, variant, profile, model.dtype, where, phases=cases).plan
    claim = _profile(model, plan, variant.profile, profile.engine)
    return Contract(
        recipe=display_path(path),
        side=side,
        model_type=model.graph.model_type,
        weights=_weights(model, plan, progress),
        environment=sealed(EnvironmentClaim(digest="", fields=dict(_version(claim) if fields is None else fields))),
        profile=claim,
        placement=sealed(SettingsClaim(digest="", settings=placement_words(variant.placement, model.graph))),
        schedule=sealed(SettingsClaim(digest="", settings=schedule_words(schedule))),
    )


def _refuse(side: Side, variant: Variant, where: Where) -> None:
    parts = {"a trace": variant.trace, "faults": variant.faults, "functions": variant.impl}
    made_of = next((words for words, part_of_side in parts.items() if part_of_side), None)
    if made_of is not None:
        raise SpecError(
            f"{where}: the {side} is made of {made_of}, which no engine can be held to. Name a side that is a profile, "
            "with what it sets."
        )


def _profile(model: Model, plan: Plan, name: str, engine: Engine | None) -> ProfileClaim:
    nodes = {
        node.name: NodeClaim(op=node.op.name, choices={c.name: c.values[0] for c in choices(node, (plan,))})
        for node in model.graph.nodes
    }
    claim = ProfileClaim(
        digest="",
        name=name,
        engine="" if engine is None else engine.name,
        version="" if engine is None else engine.version,
        dtype=plan.dtype,
        phases=tuple(plan.phases),
        nodes=nodes,
    )
    return sealed(claim)


def _version(profile: ProfileClaim) -> Mapping[str, str]:
    """The package and version that an environment report has to show; empty if the profile names no release of one."""
    package, release = _PACKAGES.get(profile.engine), profile.version.partition(" ")[0]
    return {f"version.{package}": release} if package is not None and _RELEASE.fullmatch(release) else {}


def _weights(model: Model, plan: Plan, progress: Callback | None) -> WeightsClaim:
    """Every tensor that the graph reads, rounded to the dtype in which the side holds it."""
    claims = {}
    names = _tensors(model)
    for done, (name, keeps) in enumerate(names.items(), 1):
        tensor = model.weights.checkpoint.tensor(name).to(torch_dtype("fp32" if keeps else plan.dtype))
        tensor_sum = part(name, tensor)
        claims[name] = TensorClaim(dtype=tensor_sum.dtype, shape=tensor_sum.shape, bits=f"{tensor_sum.total:016x}")
        if progress is not None:
            progress(
                Progress(step="sums of the weights", at=name, done=done, total=len(names), work=done, unit="tensors")
            )
    return sealed(WeightsClaim(digest="", tensors=claims))


def _tensors(model: Model) -> dict[str, bool]:
    """The names of the tensors that the model's graph reads -> whether the tensor stays fp32 in every dtype of a
    side.
    """
    refs = (ref for node in model.graph.nodes for ref in node.weights.values())
    return {name: ref.keep_fp32 for ref in refs for name in ref.names}
