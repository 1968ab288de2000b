"""Writes the starting recipe: its choices, and the lines that users want to add next, as comments."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from moeparity import paths
from moeparity.bisection.cost import trials_left_out
from moeparity.bisection.init.commented import comments
from moeparity.bisection.init.launched import ROLES, LaunchedSides, launched, profile_file, sides_of_recipe
from moeparity.bisection.init.launched_side import Launched
from moeparity.bisection.init.tokens import Prompts, prompts
from moeparity.bisection.toggles.data import LeftOut
from moeparity.errors import CheckpointError, MoeparityError, SpecError, Where, listed
from moeparity.inputs.weights.adapter import adapted
from moeparity.inputs.weights.checkpoint import INDEX, PICKLED, SINGLE, Checkpoint
from moeparity.inputs.weights.fit import check, check_values, file_dtype, quantisation
from moeparity.inputs.weights.store import fits
from moeparity.ops.declaration import Op
from moeparity.output.writing import refuse_unwritable, write_text
from moeparity.plan.address import role
from moeparity.plan.bind import bind
from moeparity.plan.config import UNDECLARED_DTYPE, Config
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.progress import Callback

NEW_TOKENS, NEW_TOKENS_STREAMED = 16, 4
"""Tokens generated per prompt; fewer if weights are streamed, so that each token reads all of them from the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """What was written: `recipe` and `tokens`, whether the weights are synthetic, and a sentence about them (`note`, ""
    for nothing).

    sides: both sides, and what launch files tell of them. left_out: mixtures of these sides that can't run
    and that a bisection leaves out.
    """

    recipe: Path
    tokens: Path
    synthetic: bool
    note: str
    sides: LaunchedSides
    left_out: tuple[LeftOut, ...]


def write_starter(
    checkpoint: Path,
    out: Path,
    *,
    force: bool = False,
    server: Path | None = None,
    trainer: Path | None = None,
    adapter: Path | None = None,
    progress: Callback | None = None,
) -> Starter:
    """Write a recipe for a checkpoint folder to `out`, and prompts beside it as `<name of out>.tokens.jsonl`.

    With launch files of a `server` or a `trainer`, the sides are what these start; a profile that combines several is
    written beside the recipe too. adapter: the folder of a LoRA adapter that both sides have. Every tensor is read once
    and reported to `progress`, so that a recipe for broken weights is not written. Raises MoeparityError if a file
    exists and `force` is False, for a launch file that cannot be read, and for whatever is wrong with the folder's
    config.json or its weights: missing, misshapen, quantised, not finite.
    """
    tokens_file = out.with_name(f"{out.stem}.tokens.jsonl")
    _refuse_present((out, tokens_file), force=force)
    config = Config(checkpoint / "config.json")
    graph = _of_language_model(config)
    launched_sides = None if server is None and trainer is None else _launched(checkpoint, server, trainer, out)
    graph, weight_files = _with_weights(graph, checkpoint, adapter, progress)
    note = _note(graph, weight_files)
    dtype = config.dtype or (file_dtype(weight_files) if weight_files else UNDECLARED_DTYPE)
    prompt_set = prompts(checkpoint, int(config["vocab_size"]))
    sides = sides_of_recipe(launched_sides, graph, dtype, out) if launched_sides else LaunchedSides()
    _refuse_present(tuple(sides.profiles), force=force)
    text = _recipe(
        checkpoint=os.path.relpath(checkpoint.resolve(), out.resolve().parent),
        title=f"{graph.model_type}, {graph.layers} layers, {dtype}",
        graph=graph,
        dtype=dtype,
        synthetic=weight_files is None,
        note=note,
        tokens_file=tokens_file.name,
        prompt_set=prompt_set,
        sides=sides,
        adapter=None if adapter is None else os.path.relpath(adapter.resolve(), out.resolve().parent),
    )
    for path, lines in {tokens_file: prompt_set.lines, **sides.profiles, out: text}.items():
        write_text(path, lines)
    left_out = trials_left_out(out) if launched_sides and not sides.obstacle else ()
    return Starter(
        recipe=out, tokens=tokens_file, synthetic=weight_files is None, note=note, sides=sides, left_out=left_out
    )


def _with_weights(
    graph: Graph, checkpoint: Path, adapter: Path | None, progress: Callback | None
) -> tuple[Graph, Checkpoint | None]:
    """The graph with its adapter, and the checkpoint, of which every weight was read; None if the folder has none.
    Raises CheckpointError.
    """
    has_files = any(paths.present(checkpoint / name) for name in (INDEX, SINGLE, *PICKLED))
    if not has_files and adapter is not None:
        raise CheckpointError(
            f"{Where(checkpoint)}: holds no weights, and an adapter ({adapter}) stands beside weights. Give the folder "
            "of those that it was trained on."
        )
    if not has_files:
        return graph, None
    weight_files = Checkpoint(checkpoint)
    graph = graph if adapter is None else adapted(graph, weight_files, adapter)
    check(weight_files, graph)
    check_values(weight_files, graph, progress)
    return graph, weight_files


def _of_language_model(config: Config) -> Graph:
    """The graph of a checkpoint. Raises CheckpointError for one that gives scores."""
    graph = expand(config)
    if graph.pairs:
        raise CheckpointError(
            f"{config.where('architectures')}: this checkpoint gives scores, of pairs that only you have, so `init` "
            "has no tokens for it. Write a recipe as docs/rewards.md has it."
        )
    return graph


def _launched(checkpoint: Path, server: Path | None, trainer: Path | None, out: Path) -> tuple[Launched, Launched]:
    """Both sides. Raises MoeparityError for a launch file that the recipe's profiles would overwrite."""
    beside = {f"the {role}'s profile beside --out": profile_file(out, role) for role in ROLES}
    with paths.reserved(beside):
        launched_sides = launched(checkpoint, server, trainer)
        for name, path in beside.items():
            paths.refuse_asked_for(name, path)
    return launched_sides


def _refuse_present(files: Sequence[Path], *, force: bool) -> None:
    for path in files:
        refuse_unwritable(path)
    for path in files:
        if paths.present(path) and not force:
            raise MoeparityError(f"{Where(path)}: is there already. Name another file with --out, or add --force.")


def _note(graph: Graph, weight_files: Checkpoint | None) -> str:
    """A sentence if config.json speaks of a quantisation, which the weights may have or not; else ""."""
    method = quantisation(graph)
    if method is None:
        return ""
    formats = () if weight_files is None else weight_files.formats
    if weight_files is not None and formats:
        names = weight_files.beside
        unused = (
            f" Of {len(names)} static scales, as {names[0]}, those of inputs, keys and values can be used."
            if names
            else ""
        )
        return (
            f"config.json has a quantization_config ({method}): weights ({listed(formats)}) are multiplied by their "
            "scales when they are read, and run so, but where a side's profile multiplies codes. An engine that "
            f"multiplies in fewer bits rounds activations too (docs/formats.md).{unused}"
        )
    weights = "random" if weight_files is None else file_dtype(weight_files)
    return (
        f"config.json has a quantization_config ({method}), and the weights are {weights}: they run unquantised here. "
        "An engine that goes by it quantises them, or refuses them; take it out of a copy that was dequantised."
    )


def _recipe(
    *,
    checkpoint: str,
    title: str,
    graph: Graph,
    dtype: str,
    synthetic: bool,
    note: str,
    tokens_file: str,
    prompt_set: Prompts,
    sides: LaunchedSides,
    adapter: str | None,
) -> str:
    beside = f"adapter: {_quoted(adapter)}\n" if adapter else ""
    tokenizer = f"tokenizer: {prompt_set.tokenizer}" if prompt_set.tokenizer else "# tokenizer: bytes"
    return f"""\
# For a checkpoint of {title}.
{_heading(sides)}{_commented(note)}kind: recipe
checkpoint: {_quoted(checkpoint)}
{beside}{_weights(synthetic=synthetic)}
tokens:
  # {prompt_set.comment}.
  file: {_quoted(tokens_file)}
  {tokenizer}
{_sample(graph, dtype, sides)}
  # With a rollout of your server in the file, take this line in place of `sample:`.
  # sampled_from: candidate
{sides.text or _starting_sides(graph, dtype)}
gate: {{metric: k3, below: 1e-3}}

# How differences are bundled into toggles: rule, attribute, node, layer or block.
# by: layer
# Further passes that take the largest toggles apart.
# split: 1
# Blocks to restore to the reference, to see what each does.
# swap: ["layers[*].{_block(graph)}"]
# Everything in fp64 too, to say which side is nearer the truth.
# oracle: true
# The candidate with the reference's routes forced, to say how much of it the routing flips carry.
# replay: true
# Legal orders of each op that differs: could another order of the same sums give what the candidate's gives?
# envelope: 16
# Shares of the divergence, who is interchangeable, and the smallest sets to restore; more forwards.
# attribute: true
# What `moeparity check` holds the report to.
# expect: {{verdict: pass}}"""


def _heading(sides: LaunchedSides) -> str:
    if not sides.bases:
        return (
            "# A starting point: run it as it is with `moeparity bisect`, then make both sides what you really run.\n"
        )
    lines = ["What launch files start, as they start it: run it with `moeparity bisect`."]
    lines += [f"WARNING: not this checkpoint's model: {line}" for line in sides.other_models]
    lines += [f"WARNING: both sides compute another function: {line}" for line in sides.other_functions]
    lines += [f"It does not run: {sides.obstacle}"] if sides.obstacle else []
    if sides.warnings:
        lines.append(
            "WARNING: these options decide numerics, and no profile covers them; nothing is put in their place:"
        )
    return comments([*lines, *(f"- {line}" for line in sides.warnings)])


def _starting_sides(graph: Graph, dtype: str) -> str:
    return f"reference:\n  profile: hf-eager\n  dtype: {dtype}\n  micro_batch: 8\n{_candidate(graph, dtype)}"


def _commented(note: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(note, 118, break_long_words=False, break_on_hyphens=False))


def _weights(*, synthetic: bool) -> str:
    if synthetic:
        return (
            "# The folder holds no weights: these are random, so flip rates and k3 are not those of a trained model.\n"
            "weights: synthetic(0)"
        )
    return "# Random weights in place of the files:\n# weights: synthetic(0)"


def _sample(graph: Graph, dtype: str, sides: LaunchedSides) -> str:
    resident = fits(graph, [dtype], torch.device("cpu"))
    temperature = 1.0 if sides.temperature is None else sides.temperature
    comment = "Each prompt is continued by the candidate before the run; only these tokens are scored."
    count = NEW_TOKENS
    if not resident:
        comment, count = f"{comment[:-1]}.\n  # Each reads all weights again, so there are few.", NEW_TOKENS_STREAMED
    return f"  # {comment}\n  sample: {{from: candidate, new_tokens: {count}, temperature: {temperature}, seed: 0}}"


def _candidate(graph: Graph, dtype: str) -> str:
    head = "candidate:\n  profile: "
    tail = f"\n  dtype: {dtype}\n  micro_batch: 8\n"
    change = f'    "{_changed(graph)}": {"fp32" if dtype != "fp32" else "bf16"}'
    try:
        bind(graph, load_profile("hf-default", Where(Path("init"))), dtype)
    except SpecError as error:
        reason = str(error).partition(": ")[2].partition(". ")[0]
        selector = _selector(graph, lambda op: bool(op.tokens.history))
        return (
            f"# hf-default does not run on this model: {reason}.\n{head}hf-eager{tail}  set:\n"
            f'    "{selector}:implementation": sdpa\n    # {change.strip()}'
        )
    hint = "  # Choices of your server on top of the profile; `moeparity show ops` lists them."
    return f"{head}hf-default{tail}{hint}\n  # set:\n  # {change[2:]}"


def _changed(graph: Graph) -> str:
    """An address whose value users change first: the router's logits, or the head's in a model without a router."""
    return f"{_selector(graph, lambda op: op.role.gates) or role(graph.output)}:output"


def _selector(graph: Graph, predicate: Callable[[Op], bool]) -> str:
    """The address of the nodes of such an op in all layers, `layers[*].moe.gate`; "" if there are none."""
    return next((role(node.name) for node in graph.nodes if predicate(node.op)), "")


def _block(graph: Graph) -> str:
    return "moe" if _selector(graph, lambda op: op.role.routes) else "attention"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
