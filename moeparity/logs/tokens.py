"""Turns a log into a recipe's tokens: whole sequences, loss masks, and what both engines recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeparity.errors import LogError, TokensError, Where, counted
from moeparity.inputs.tokens.pads import one_width
from moeparity.inputs.tokens.requests import read_request
from moeparity.inputs.tokens.tokenset import TokenSet, routed_layers
from moeparity.logs.formats.further import FURTHER, HIDDEN
from moeparity.logs.record import Sampling, Sequence
from moeparity.ops.kernels.text import SamplingRequest

_ROUTES = "routed_experts"
_UNLABELLED = "no label"
"""The class of sequences without a label, if others have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTokens:
    """The tokens made of a log.

    left_out: number of sequences without a scored token. layers: numbers of the MoE layers among the recorded ones; ()
    without routes. sampling: each set of parameters that the log states, with its number of sequences. versions: each
    weight version that sampled a scored token (-1 unknown), with its number of tokens. further: what else both sides
    recorded of several numbers for each token, by its name in `Sequence.extra`: [B, T, K] or [B, T, H], padded as the
    tokens, with -1 or NaN.
    """

    tokens: TokenSet
    left_out: int
    layers: tuple[int, ...]
    sampling: tuple[tuple[Sampling, int], ...]
    versions: tuple[tuple[int, int], ...]
    further: Mapping[str, Tensor]


def tokens_of(log: Iterable[Sequence], *, most: int | None = None) -> LoggedTokens:
    """The first `most` sequences (None: all) of a log of `open_sampled`, with log-probabilities and routes.

    Sequences are padded as their trainer did if the log says how and all are of one batch, else on the right with 0.
    Raises LogError if a log has responses without their prompts, which no forward pass can score, or routes of
    different shapes.
    """
    sequences: list[Sequence] = []
    left_out = 0
    for sequence in log:
        refuse_without_prompt(sequence)
        if bool(sequence.mask.any()):
            sequences.append(sequence)
        left_out += not bool(sequence.mask.any())
        if len(sequences) == most:
            break
    routes, layers = _routes(sequences)
    words = [s.classes or (s.group or _UNLABELLED,) * len(s.token_ids) for s in sequences]
    names = tuple(dict.fromkeys(chain.from_iterable(words)))
    labelled = names != (_UNLABELLED,)
    tokens = TokenSet(
        input_ids=_block([s.token_ids for s in sequences], 0),
        loss_mask=_block([s.mask for s in sequences], False),
        attention_mask=_block([torch.ones_like(s.mask) for s in sequences], False),
        labels=_labels(words, names) if labelled else None,
        label_names=names if labelled else (),
        logprobs=_block([_recorded(s, s.rollout) for s in sequences], torch.nan),
        trainer_logprobs=_by_trainer(sequences),
        routed_experts=routes,
        requests=_requests(sequences),
    )
    tokens = _padded(sequences, tokens)
    return LoggedTokens(
        tokens=tokens,
        left_out=left_out,
        layers=layers,
        sampling=tuple(Counter(s.sampling for s in sequences).most_common()),
        versions=tuple(sorted(Counter(_versions(sequences)).items())),
        further=_further(sequences, tokens.attention_mask),
    )


def _requests(sequences: list[Sequence]) -> tuple[SamplingRequest, ...]:
    """What each sequence's request asked for by token ids; empty if the log says nothing of any. Raises LogError."""
    try:
        requests = [read_request(s.where, dict(s.request) or None, s.grammar) for s in sequences]
    except TokensError as error:
        raise LogError(str(error)) from None
    return tuple(request or SamplingRequest() for request in requests) if any(requests) else ()


def refuse_without_prompt(sequence: Sequence) -> None:
    """Raises LogError for a response that no forward can score."""
    if sequence.prompt == 0:
        raise LogError(
            f"{sequence.where}: sequence {sequence.id} is a response without its prompt, so no forward can score "
            "it. Log the prompt's ids too (docs/logs.md says how of each engine)."
        )


def routes_shape(sequence: Sequence) -> tuple[int, ...] | None:
    """[layers, top_k] of its recorded routes; None without any."""
    return tuple(sequence.extra[_ROUTES].shape[1:]) if _ROUTES in sequence.extra else None


def _labels(words: list[tuple[str, ...]], names: tuple[str, ...]) -> Tensor:
    codes = {name: code for code, name in enumerate(names)}
    return _block([torch.tensor([codes[word] for word in of_sequence]) for of_sequence in words], 0)


def _recorded(sequence: Sequence, logprobs: Tensor | None) -> Tensor:
    """fp64 [n], NaN at tokens that are not scored, whatever was written there, and at those of probability 0."""
    if logprobs is None:
        return torch.full(sequence.mask.shape, torch.nan, dtype=torch.float64)
    return logprobs.double().where(sequence.mask & ~logprobs.isinf(), torch.nan)


def _padded(sequences: list[Sequence], tokens: TokenSet) -> TokenSet:
    """Moves the padding of tokens from the right to where `pads` says; only if all rows then have one width."""
    if not sequences or not one_width([(len(s.token_ids), s.pads) for s in sequences]):
        return tokens
    rows = [(s.pads, len(s.token_ids)) for s in sequences if s.pads is not None]
    real = torch.tensor([[0] * pads.before + [1] * length + [0] * pads.behind for pads, length in rows]).bool()

    def moved(block: Tensor, fill: float) -> Tensor:
        values = torch.full((*real.shape, *block.shape[2:]), fill, dtype=block.dtype)
        values[real] = block[tokens.attention_mask]
        return values

    ids = torch.tensor([pads.id for pads, _ in rows])[:, None].expand(real.shape).clone()
    ids[real] = tokens.input_ids[tokens.attention_mask]
    fills = {"labels": 0, "logprobs": torch.nan, "trainer_logprobs": torch.nan, "routed_experts": -1}
    columns = {name: (getattr(tokens, name), fill) for name, fill in fills.items()}
    blocks: dict[str, Any] = {
        name: None if block is None else moved(block, fill) for name, (block, fill) in columns.items()
    }
    return replace(
        tokens,
        input_ids=ids,
        loss_mask=moved(tokens.loss_mask, False),
        attention_mask=real,
        **blocks,
    )


def _by_trainer(sequences: list[Sequence]) -> Tensor | None:
    """The trainer's log-probabilities, if the log has any."""
    if all(sequence.trainer is None for sequence in sequences):
        return None
    return _block([_recorded(sequence, sequence.trainer) for sequence in sequences], torch.nan)


def _routes(sequences: list[Sequence]) -> tuple[Tensor | None, tuple[int, ...]]:
    """The routes of all sequences without dense layers, [B, T, MoE layers, K], and the numbers of the MoE layers.
    Raises LogError for different shapes.
    """
    by_shape: dict[tuple[int, ...], Where] = {}
    for sequence in sequences:
        of_sequence = routes_shape(sequence)
        if of_sequence is not None:
            by_shape.setdefault(of_sequence, sequence.where)
    if not by_shape:
        return None, ()
    shape, where = next(iter(by_shape.items()))
    if len(by_shape) > 1:
        second, at = list(by_shape.items())[1]
        raise LogError(
            f"{at}: {_ROUTES} is {list(second)} per token; {where} has {list(shape)}. Expected [layers, top_k], the "
            "same of every sequence."
        )
    rows = [s.extra[_ROUTES] if _ROUTES in s.extra else torch.full((len(s.token_ids), *shape), -1) for s in sequences]
    routed, layers = routed_layers(where, torch.cat(rows))
    return _block(list(torch.split(routed, [len(row) for row in rows])), -1), layers


def _further(sequences: list[Sequence], real: Tensor) -> dict[str, Tensor]:
    """What `formats.further` reads of all sequences, at the real tokens, bool [B, T]. Raises LogError for hidden states
    of several widths.
    """
    blocks: dict[str, Tensor] = {}
    for key in (f"{side}{name}" for side in ("", "trainer_") for name in FURTHER):
        with_it = [sequence for sequence in sequences if key in sequence.extra]
        widths = {sequence.extra[key].shape[1]: sequence.where for sequence in with_it}
        if len(widths) > 1 and key.endswith(HIDDEN):
            first, second = [f"{where}: {key} has {width} numbers" for width, where in widths.items()][:2]
            raise LogError(f"{second} a token; {first.removesuffix(' numbers')}. Expected those of one model.")
        if with_it:
            width, dtype = max(widths), with_it[0].extra[key].dtype
            fill = torch.nan if dtype.is_floating_point else -1
            blocks[key] = torch.full((*real.shape, width), fill, dtype=dtype)
            rows = [s.extra.get(key, torch.full((len(s.token_ids), width), fill, dtype=dtype)) for s in sequences]
            wide = [torch.nn.functional.pad(row, (0, width - row.shape[1]), value=fill) for row in rows]
            blocks[key][real] = torch.cat(wide)
    return blocks


def _versions(sequences: list[Sequence]) -> Iterator[int]:
    for sequence in sequences:
        if sequence.versions is not None:
            yield from sequence.versions[sequence.mask].tolist()


def _block(rows: list[Tensor], fill: float) -> Tensor:
    """[B, T, ...] of rows [n, ...], padded on the right."""
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)


def about(logged: LoggedTokens, path: Path) -> Iterator[str]:
    """Lines on what was written to `path`, and how a recipe names it."""
    tokens = logged.tokens
    rows, width = tokens.input_ids.shape
    scored = counted(int(tokens.loss_mask.sum()), "token")
    yield f"{path}: {counted(rows, 'sequence')} of up to {width} tokens, {scored} scored, each with its log-probability"
    if tokens.trainer_logprobs is not None:
        yield f"log-probabilities of the trainer for {counted(int(tokens.recorded_by_trainer.sum()), 'token')}"
    if tokens.routed_experts is not None:
        recorded = int((tokens.routed_experts >= 0).all(-1).any(-1).sum())
        yield f"routes of {counted(recorded, 'token')} in {counted(len(logged.layers), 'MoE layer')}"
    if not bool(tokens.attention_mask[:, 0].all()):
        yield f"{counted(tokens.pads, 'pad')} as the trainer computed them: give its side the same `micro_batch`"
    if logged.left_out:
        yield f"left out: {counted(logged.left_out, 'sequence')} without a scored token"
    for sampling, count in logged.sampling:
        if sampling.processors and sampling.logprobs_mode != "raw":
            numbers = ", ".join(f"{name} {value:g}" for name, value in sampling.processors.items())
            choices = ", ".join(f'"log_probs:{name}": {value:g}' for name, value in sampling.processors.items())
            yield (
                f"{counted(count, 'sequence')} at {numbers}: processed log-probabilities need `set: {{{choices}}}` on "
                "that side (docs/log-probs.md)"
            )
    if logged.versions:
        counts = [f"{'unknown' if name < 0 else name}: {counted(count, 'token')}" for name, count in logged.versions]
        yield f"weight versions that sampled: {', '.join(counts)}; a checkpoint has one"
    yield f"next: tokens: {{file: {path.name}, sampled_from: candidate}}"
