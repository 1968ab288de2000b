"""Heads that a checkpoint may have in place of its language model's: those of `graphs/heads`, by config.json."""

from __future__ import annotations

from functools import partial
from typing import Final

from moeparity.documents.checked import read, shipped
from moeparity.errors import CheckpointError, listed, shown
from moeparity.plan.config import Config
from moeparity.plan.latest import Latest
from moeparity.plan.spec.graph_schema import GraphFile, HeadFile

_LATEST: Final[Latest[GraphFile]] = Latest(16)
_UNLESS_SAID = 2
"""Labels of a config.json that says nothing of them, as transformers has it."""


def with_head(spec: GraphFile, config: Config) -> GraphFile:
    """The graph with the head of the class that config.json names in `architectures`; itself for a language model.

    Raises CheckpointError for a class whose head is not known for the model, or has another number of labels.
    """
    listed_classes = config.get("architectures", ())
    architecture = str(listed_classes[0]) if isinstance(listed_classes, list) and listed_classes else ""
    heads = (read(path, HeadFile) for path in shipped("heads").values())
    head = next((head for head in heads if architecture.endswith(head.architecture)), None)
    if head is None:
        return spec
    if config.model_type not in head.model_type:
        raise CheckpointError(
            f"{config.where('architectures')}: {architecture} has the head of {head.architecture}, which transformers "
            f"does not give to {config.model_type!r}; expected a model_type among {listed(head.model_type)}."
        )
    field, labels = _labels(config)
    if labels != head.labels:
        raise CheckpointError(
            f"{config.where(field)}: {field} gives {shown(labels)} labels; expected {head.labels}, a score: the head "
            "of a reward model. Classifiers are not computed."
        )
    return _laid(spec, head)


def _laid(spec: GraphFile, head: HeadFile) -> GraphFile:
    after = {name: node for name, node in spec.after.items() if name not in head.replaces}
    laid = partial(spec.model_copy, update={"after": after | head.after, "output": head.output})
    # The same object for the same files, by which graphs are cached.
    return _LATEST.of((spec, head), None, laid)


def _labels(config: Config) -> tuple[str, object]:
    """The field that says how many labels there are, and how many."""
    if config.get("num_labels") is not None:
        return "num_labels", config["num_labels"]
    names = config.get("id2label")
    if names is None:
        return "architectures", _UNLESS_SAID
    return "id2label", len(names) if isinstance(names, dict) else names
