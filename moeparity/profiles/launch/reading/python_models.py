"""The model that TRL's trainers are given in Python: by name, or as it was loaded and wrapped before."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from moeparity.profiles.launch.reading.python_names import Names, as_option
from moeparity.profiles.launch.source import Entry, Note, Unresolved

_TRAINERS = ("GRPOTrainer", "RLOOTrainer", "OnlineDPOTrainer")
_MOVES = ("to", "cuda", "cpu", "train", "eval")
"""Methods that leave a model's numbers as they are; the first may name a dtype."""
_CASTS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32"}
_NAMES = ("pretrained_model_name_or_path", "model_name", "model_id", "model_name_or_path")
_OPTIONS = ("dtype", "torch_dtype", "attn_implementation", "load_in_4bit", "load_in_8bit")
"""Keywords of `from_pretrained` that are options of TRL's, too."""
_WHEREABOUTS = ("device_map", "revision", "token", "cache_dir", "trust_remote_code", "use_cache", "low_cpu_mem_usage")
"""Those that say where weights come from and where they go."""


def trained(names: Names) -> Iterator[Entry]:
    """What TRL's trainers are given beside their configuration: the model, an adapter, a quantisation."""
    for call in _trainers(names):
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        model = keywords.get("model", call.args[0] if call.args else None)
        if model is not None:
            yield from _of_model(names, model, {})
        adapter = keywords.get("peft_config")
        if adapter is not None and names.value(adapter) is not None:
            yield Entry(name="use_peft", value=_adapted(names, adapter), where=names.where(adapter))
        quantised = keywords.get("quantization_config")
        if quantised is not None and names.value(quantised) is not None:
            value = ast.unparse(names.expression(quantised))[:200]
            yield Entry(name="quantization_config", value=value, where=names.where(quantised))


def unread(names: Names) -> Iterator[Note]:
    """Mappings that trainers are given as keywords, of which nothing is known."""
    for call in _trainers(names):
        for keyword in call.keywords:
            if keyword.arg is None:
                says = f"`**{ast.unparse(keyword.value)[:60]}` is not resolved: what it sets is not known"
                yield Note(says=says, where=names.where(keyword), opens="options")


def _trainers(names: Names) -> Iterator[ast.Call]:
    calls = (node for node in ast.walk(names.tree) if isinstance(node, ast.Call))
    return (call for call in calls if names.qualified(call.func)[1] in _TRAINERS)


def _adapted(names: Names, adapter: ast.expr) -> Any:
    """Whether there is an adapter: a configuration that is made on the spot is one, any other may be none."""
    configuration = names.expression(adapter)
    is_made = isinstance(configuration, ast.Call) and names.dotted(configuration.func).endswith("Config")
    return True if is_made else Unresolved(ast.unparse(adapter)[:200])


def _of_model(names: Names, node: ast.expr, turns: Mapping[str, int]) -> Iterator[Entry]:
    """What a model's expression says; of a name that is assigned several times, `turns` were looked at already."""
    if isinstance(node, ast.Name):
        values = names.assigned.get(node.id, [])
        turn = turns.get(node.id, len(values)) - 1
        yield from _of_model(names, values[turn], {**turns, node.id: turn}) if turn >= 0 else _unknown(names, node)
    elif isinstance(node, ast.Subscript):
        # Unsloth loads a model and its tokenizer together.
        yield from _of_model(names, node.value, turns)
    elif isinstance(node, ast.Call):
        yield from _called(names, node, turns)
    elif isinstance(node, ast.Constant) or _is_argument(names, node):
        yield Entry(name="model_name_or_path", value=names.resolved(node), where=names.where(node))
    else:
        yield from _unknown(names, node)


def _is_argument(names: Names, node: ast.expr) -> bool:
    """Whether it is an argument of the command line, which holds a name and no model."""
    return isinstance(node, ast.Attribute) and "parse_args" in ast.unparse(names.expression(node.value))


def _called(names: Names, call: ast.Call, turns: Mapping[str, int]) -> Iterator[Entry]:
    """A model that a call loads, moves, casts or wraps."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else names.dotted(call.func).rpartition(".")[2]
    where, arguments = names.where(call), [*call.args, *(keyword.value for keyword in call.keywords)]
    owner = names.dotted(call.func).rpartition(".")[0].rpartition(".")[2]
    if method == "get_peft_model" or owner.startswith("Peft"):
        yield from _of_model(names, arguments[0], turns) if arguments else ()
        yield Entry(name="use_peft", value=True, where=where)
    elif method == "from_pretrained":
        yield from _loaded(names, call)
    elif isinstance(call.func, ast.Attribute) and method in (*_MOVES, *_CASTS):
        yield from _of_model(names, call.func.value, turns)
        cast = [names.value(argument) for argument in arguments if names.dotted(argument).startswith("torch.")]
        for dtype in [_CASTS[method]] if method in _CASTS else cast:
            yield Entry(name="dtype", value=dtype, where=where)
    else:
        yield from _of_model(names, call.args[0], turns) if call.args else ()
        yield from _unknown(names, call)


def _loaded(names: Names, call: ast.Call) -> Iterator[Entry]:
    """`from_pretrained`: the model's name, its dtype, its attention, and what else it is loaded with."""
    where = names.where(call)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    name = next((keywords[key] for key in _NAMES if key in keywords), call.args[0] if call.args else None)
    if name is not None:
        yield Entry(name="model_name_or_path", value=names.resolved(name), where=where)
    if not {"dtype", "torch_dtype"} & {*keywords}:
        says = f"not said where it is loaded (line {where.line}): transformers' version decides"
        yield Entry(name="dtype", value=Unresolved(says), where=where)
    for key in _OPTIONS:
        if key in keywords:
            yield Entry(name=key, value=as_option(names.resolved(keywords[key])), where=where)
    others = {key: ast.unparse(keywords[key]) for key in keywords if key not in (*_NAMES, *_OPTIONS, *_WHEREABOUTS)}
    if names.dotted(call.func).startswith("unsloth."):
        others["unsloth"] = "its kernels"
    if others:
        yield Entry(name="model_init_kwargs", value=others, where=where)


def _unknown(names: Names, node: ast.expr) -> Iterator[Entry]:
    """A model that something not followed makes: neither its dtype nor an adapter is known."""
    value = Unresolved(ast.unparse(node)[:200])
    for name in ("dtype", "attn_implementation", "use_peft", "model_name_or_path"):
        if name != "model_name_or_path" or not isinstance(node, ast.Call):
            yield Entry(name=name, value=value, where=names.where(node))
