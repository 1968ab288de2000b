"""Reads all kinds of YAML files, and turns pydantic's complaints into one message with file, line and nearest name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from moeparity import paths
from moeparity.documents import yaml
from moeparity.documents.checked import checked, complaint, read, shipped
from moeparity.errors import SpecError, Where, did_you_mean, display_path, listed, shown
from moeparity.plan.spec import graph_schema, log_schema, profile_schema, recipe_schema, variant_schema
from moeparity.plan.spec.extended import extended
from moeparity.plan.spec.fault_schema import FaultFile
from moeparity.plan.spec.gemm_plans_schema import PlansFile
from moeparity.plan.spec.kernel import KernelFile
from moeparity.plan.spec.layout_schema import LayoutFile
from moeparity.plan.spec.module_map import MapFile
from moeparity.plan.spec.scheduling import Scheduling

KINDS: dict[str, type[BaseModel]] = {
    "graph": graph_schema.GraphFile,
    "profile": profile_schema.ProfileFile,
    "recipe": recipe_schema.RecipeFile,
    "log": log_schema.LogCheck,
    "kernel": KernelFile,
    "fault": FaultFile,
    "map": MapFile,
    "layout": LayoutFile,
    "plans": PlansFile,
}


def read_graph(path: Path) -> graph_schema.GraphFile:
    """A graph file, laid over the one that it extends. Raises SpecError."""
    file = _valid_graph(tuple((each, yaml.text_of(each)) for each in graph_files(path)))
    assert isinstance(file, graph_schema.GraphFile)
    return file


def graph_files(path: Path) -> list[Path]:
    """The file of a graph, and the one that it extends: a user's own or a shipped one. Raises SpecError."""
    data = yaml.load(path)
    name = data.get("extends")
    if name is None:
        return [path]
    where, graphs = data.where("extends"), shipped("models")
    if not isinstance(name, str):
        raise SpecError(f"{where}: extends is {shown(name)}; expected the name of a graph.")
    if (base := own_file(name, where, "graph")) is not None:
        return [path, base]
    if name not in graphs:
        raise SpecError(
            f"{where}: graph {name!r} is not shipped; expected one of {listed(graphs)}, or a path with `/` or `.yaml` "
            f"to a file of your own.{did_you_mean(name, graphs)}"
        )
    return [path, graphs[name]]


def read_profile(path: Path) -> profile_schema.ProfileFile:
    """A profile file. Raises SpecError."""
    return read(path, profile_schema.ProfileFile)


def read_recipe(path: Path) -> recipe_schema.RecipeFile:
    """A recipe file. Raises SpecError, also where the path is the folder of a checkpoint."""
    if paths.is_file(path / "config.json"):
        raise SpecError(
            f"{Where(path)}: is a checkpoint, and a recipe is needed: run `moeparity init {display_path(path)}`, which "
            "writes one."
        )
    return read(path, recipe_schema.RecipeFile)


def is_log_check(path: Path) -> bool:
    """Whether the file says `kind: log`. Raises SpecError where it is no YAML mapping."""
    return yaml.load(path).get("kind") == "log"


def read_placement(fields: Mapping[str, Any], where: Where) -> variant_schema.Placement:
    """A placement that was not written in a file. Raises SpecError."""
    try:
        return variant_schema.Placement.model_validate(dict(fields))
    except ValidationError as error:
        _, says = complaint(dict(fields), variant_schema.Placement, error)
        raise SpecError(f"{where}: placement: {says}") from None


def read_scheduling(fields: Mapping[str, Any], where: Where) -> Scheduling:
    """A schedule that was not written in a file. Raises SpecError."""
    try:
        return Scheduling.model_validate(dict(fields))
    except ValidationError as error:
        _, says = complaint(dict(fields), Scheduling, error)
        raise SpecError(f"{where}: schedule: {says}") from None


def own_file(name: str, where: Where, noun: str) -> Path | None:
    """A file of the user's own, for a name that is a path (with `/` or ending in `.yaml`) beside the file that names
    it; None for any other name, which is that of a shipped one. Raises SpecError where there is no such file.
    """
    if "/" not in name and not name.endswith(".yaml"):
        return None
    path = where.path.parent / name
    if not paths.present(path):
        raise SpecError(f"{where}: {noun} {name!r}: there is no file {display_path(path)}. Check the path.")
    return path


def find_profile(name: str, where: Where) -> Path:
    """The file of a profile, a user's own or a shipped one. Raises SpecError."""
    if (path := own_file(name, where, "profile")) is not None:
        return path
    profiles = shipped("profiles")
    if name not in profiles:
        raise SpecError(
            f"{where}: profile {name!r} is not shipped; expected one that `moeparity show engines` lists, or a path "
            f"with `/` or `.yaml` to a file of your own.{did_you_mean(name, profiles)}"
        )
    return profiles[name]


def find_file(name: str, where: Where, noun: str) -> Path:
    """The file or folder a recipe names, relative to the recipe's own folder. Raises SpecError where it is missing."""
    path = where.path.parent / name
    if not paths.present(path):
        raise SpecError(f"{where}: {noun} {name!r} does not exist. A relative path starts at this file's folder.")
    return path


def find_adapter(recipe: recipe_schema.RecipeFile, path: Path) -> Path | None:
    """The folder of a recipe's adapter; None if it has none. Raises SpecError where it is missing."""
    name = recipe.adapter
    return None if name is None else find_file(name, Where(path, recipe.line_of("adapter")), "adapter")


@lru_cache(maxsize=64)
def _valid_graph(files: tuple[tuple[Path, str], ...]) -> BaseModel:
    """Of a graph's files with their texts, its own first."""
    data, *bases = (yaml.parsed(path, text) for path, text in files)
    for base in bases:
        data = extended(data, base)
    return checked(files[0][0], data, graph_schema.GraphFile)
