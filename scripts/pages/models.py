"""Which models of the installed transformers have a graph, from its sources, the graphs and the small checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from moeparity.documents.checked import shipped
from moeparity.ops.registry import OPS
from moeparity.plan.spec import graph_schema, reader
from tests.small_models import SMALL

WITHOUT = Path(__file__).with_name("models_without_graph.json")
PAGE = """# Models of transformers

Which mixtures of experts that transformers has does moeparity compute, and what do the others need?

Written by `python -m scripts.pages models` from the sources of transformers {version}, from `graphs/models/` and from
`tests/small_models.py`. Listed is every language model whose modeling file has experts, and every dense one that has a
graph here.

## With a graph

Each small checkpoint is run by transformers, live, and by moeparity, under `hf-eager` and `hf-default`, in bf16 and
fp32: logits and routes in slot order have the same bits, without padding and with padding on either side or both, for
one token and for several (`tests/hf/test_models.py`). So have the steps of a filled cache: prefill, chunks, decode, and
`generate` with a dynamic and a static cache (`tests/hf/test_schedules.py`, which says where packs differ). Each is held
to a plain fp64 forward too (`tests/bisection/oracle/test_measure.py`). The hub's own layouts are in
`tests/hf/test_hub_layout.py`.

"Engines" are those whose profiles have rules that name the model: of others what a profile says is the engine's usual
kernel, which nobody has compared for this model.

| type | graph | mixes tokens by | experts on disk | small checkpoints | engines |
|---|---|---|---|---|---|
{covered}

## Without a graph

{count} models, by their folders in `transformers/models`, each with what it has that no graph has yet.

| folder | what it needs |
|---|---|
{missing}
"""


def page(_: str = "") -> str:
    """The whole page."""
    missing = [f"| `{folder}` | {need} |" for folder, need in without_graph().items()]
    return PAGE.format(
        version=metadata.version("transformers"),
        covered="\n".join(_row(path) for path in shipped("models").values()),
        count=len(missing),
        missing="\n".join(missing),
    )


def without_graph() -> dict[str, str]:
    """What each folder of transformers that no graph covers needs. Raises KeyError for one of which nothing is said."""
    needs = json.loads(WITHOUT.read_text("utf-8"))["needs"]
    covered = {name for path in shipped("models").values() for name in reader.read_graph(path).model_type}
    return {folder: needs[folder] for folder, types in sorted(with_experts().items()) if not types & covered}


def with_experts() -> dict[str, set[str]]:
    """The folders of transformers' language models that have experts, each with its model types."""
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    folders = {}
    for path in sorted((Path(spec.origin).parent / "models").glob("*/modeling_*.py")):
        source = path.read_text("utf-8")
        if re.search(r"self\.experts = ", source) and re.search(r"class \w+(ForCausalLM|Generation)\(", source):
            configuration = path.with_name(path.name.replace("modeling_", "configuration_"))
            stated = configuration.read_text("utf-8") if configuration.exists() else source
            folders[path.parent.name] = {path.parent.name, *re.findall(r'model_type = "(\w+)"', stated)}
    return {folder: types for folder, types in folders.items() if folder not in _NO_LANGUAGE_MODELS}


_NO_LANGUAGE_MODELS = {"nllb_moe", "switch_transformers", "deepseek_ocr2", "unlimited_ocr"}
"""Encoders and decoders of translation, and readers of images, whose language model is another's."""


def _row(path: Path) -> str:
    graph = reader.read_graph(path)
    base = f" on `{graph.extends}`" if graph.extends else ""
    names = [name for name, fields in SMALL.items() if fields["model_type"] in graph.model_type]
    lines = len(path.read_text("utf-8").splitlines())
    cells = (
        ", ".join(f"`{name}`" for name in graph.model_type),
        f"{lines} lines{base}",
        ", ".join(f"`{op}`" for op in _mixers(graph)),
        _experts(graph),
        ", ".join(f"`{name}`" for name in names),
        ", ".join(_engines(graph)) or "none",
    )
    return f"| {' | '.join(cells)} |"


def _nodes(graph: graph_schema.GraphFile) -> Iterator[graph_schema.Node]:
    for block in graph.blocks.values():
        for cases in block.nodes.values():
            yield from cases if isinstance(cases, list) else [cases]


def _mixers(graph: graph_schema.GraphFile) -> list[str]:
    """Ops that see other tokens of a sequence."""
    used = {node.op for node in _nodes(graph)}
    return [name for name, op in OPS.items() if name in used and (op.tokens.state is not None or op.tokens.mixes)]


def _experts(graph: graph_schema.GraphFile) -> str:
    nodes = [node for node in _nodes(graph) if node.op == "experts"]
    weights = [node.weights.get("gate", node.weights["down"]) for node in nodes]
    if not weights:
        return "dense"
    if weights[0].stacked is not None:
        return "in two stacks"
    return "each alone, or in two stacks" if "{e}.gate_proj." in weights[0].name else "each alone"


def _engines(graph: graph_schema.GraphFile) -> list[str]:
    """Engines that have rules for the model by its name."""
    engines = set()
    for path in shipped("profiles").values():
        profile = reader.read_profile(path)
        # What a cache stores tells nothing of how the model is computed.
        computing = (rule for rule in profile.rules if rule.op != "kv_cache")
        model_types = {name for rule in computing for name in rule.model_type or ()}
        if profile.engine is not None and model_types & set(graph.model_type):
            engines.add(profile.engine.name)
    return sorted(engines)
