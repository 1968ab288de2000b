"""`moeparity flips`: the routing flips between a recipe's two sides, or between the records of two engines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from moeparity.bisection.expectations import expectations
from moeparity.bisection.flips.census import MAP_BITS, Census
from moeparity.bisection.flips.data import RoutingFlips
from moeparity.bisection.flips.measure import routing_flips
from moeparity.bisection.flips.observe import CENSUS
from moeparity.bisection.measures import summarise
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import passes_over, piece_store, ready
from moeparity.bisection.report import Report
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.runs.folder import open_run
from moeparity.bisection.study import Study
from moeparity.errors import SpecError, TokensError, Where, display_path
from moeparity.inputs.tokens.routelog import RecordedRoutes, read_routes
from moeparity.output.findings import Finding, findings_code
from moeparity.output.json import to_json
from moeparity.output.status import status
from moeparity.output.words import percent, quantity
from moeparity.output.writing import write_tensors
from moeparity.plan.spec.expect import Expect
from moeparity.progress import Callback

SCHEMA = "moeparity.flips/1"
"""Schema of the JSON. The number grows if a field changes its meaning or goes; new fields may appear without that."""

MAP_SCHEMA = "moeparity.flip-map/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flipped:
    """The flips of a candidate against a reference, and the map in which they are counted.

    reference, candidate: a side in words, or the file of recorded routes. findings: of the recipe's `expect: flips`.
    same_tokens: for recorded routes, in how many sequences both files give token ids, which then agree; None for a
    recipe.
    map: uint8 [MoE layers, sequences, tokens], the bits of `census.MAP_BITS`; `write_map` writes it.
    report: the bisection in which they were seen; None for recorded routes.
    """

    reference: str
    candidate: str
    sequences: int
    same_tokens: int | None
    flips: RoutingFlips
    findings: tuple[Finding, ...]
    map: torch.Tensor = field(metadata={"json": False})
    report: Report | None = field(default=None, metadata={"json": False})

    @property
    def exit_code(self) -> int:
        """0, unless the recipe bounds its flips: then 1 if a bound is not met, 3 if only two simulations meet it."""
        return findings_code(self.findings)

    @property
    def status(self) -> str:
        """How many tokens flip, and whether the recipe's bounds are met, as a status."""
        flips = self.flips
        part = percent(flips.tokens_any_layer / flips.tokens) if flips.tokens else "none"
        figure = f"{flips.tokens_any_layer} of {flips.tokens} tokens ({part}) flip in some layer"
        met = sum(finding.status == "ok" for finding in self.findings)
        gate = f"{met} of {quantity(len(self.findings), 'bound')} met" if self.findings else "no gate"
        return status(figure, gate, self.exit_code)

    def to_json(self) -> str:
        """The report as strict JSON, without the map of flips. NaN and infinities are written as the strings nan, inf
        and -inf.
        """
        return to_json(SCHEMA, self)

    def write_map(self, path: Path) -> None:
        """Write the map as a safetensors file: `flips`, and `layers` (int64), the number of each layer in the model."""
        layers = torch.tensor([layer.layer for layer in self.flips.layers])
        metadata = {"schema": MAP_SCHEMA, "bits": json.dumps(MAP_BITS)}
        write_tensors(path, {"flips": self.map, "layers": layers}, metadata)


def flips(
    recipe: str | Path,
    *,
    device: str = "auto",
    allow_code: bool = False,
    memory_limit: float | None = None,
    progress: Callback | None = None,
    run: str | Path | None = None,
) -> Flipped:
    """Run a recipe with its toggles and count the candidate's routing flips; `run` is a folder that keeps the run.

    Raises MoeparityError as `moeparity.bisect` does, and if no router runs on both sides.
    """
    options = Options(split=0, floor=False, oracle=False, allow_code=allow_code, memory_limit=memory_limit)
    with open_run(run, "flips", recipe, {"device": device}) as folder:
        study = ready(recipe, device=device, options=options, progress=progress)
        if folder is None:
            return _flipped(study, progress=progress)
        folder.admit(study, progress)
        with piece_store(study, folder, Flipped) as store:
            assert store is not None
            result = folder.once(store, "flips", lambda: _flipped(study, store, progress))
            folder.finish(result)
    return result


def _flipped(study: Study, store: PieceStore | None = None, progress: Callback | None = None) -> Flipped:
    study, observed = passes_over(study, store, progress)
    report, graph, census = summarise(study, observed), study.model.graph, observed.of_watch(CENSUS)
    if report.flips is None or census is None:
        has_router = any(node.op.role.routes for node in graph.nodes)
        why = "every router lies inside a user's function" if has_router else "has no router, so nothing can flip"
        raise SpecError(f"{Where(study.path)}: {graph.model_type}: {why}. Use bisect.")
    stated = {key: getattr(study.recipe.expect, key) for key in ("flips", "record")}
    expect = Expect(**{key: value for key, value in stated.items() if value is not None})
    flip_expectations = () if expect.flips is None else expectations(expect, graph, Where(study.path))
    return Flipped(
        reference=report.reference.in_full,
        candidate=report.candidate.in_full,
        sequences=report.run.sequences,
        same_tokens=None,
        flips=report.flips,
        findings=tuple(expectation.finding(report) for expectation in flip_expectations),
        map=census.map,
        report=report,
    )


def logged_flips(reference: str | Path, candidate: str | Path, *, top_k: int | None = None) -> Flipped:
    """The flips between the routes that two engines recorded of the same tokens; needs no weights.

    Sequences are matched by their ids if both files give them, else by position. `top_k`: as in `read_routes`. Raises
    TokensError for files that cannot be read, or that are not of the same tokens, layers and top_k.
    """
    pairs = _joined(*(read_routes(Path(path), top_k=top_k) for path in (reference, candidate)))
    same_tokens = sum(_same_tokens(ours, theirs) for ours, theirs in pairs)
    numbers = _layers(pairs)
    layers, k = pairs[0][0].routes.shape[1:]
    width = max(len(ours.routes) for ours, _ in pairs)
    census = Census(torch.zeros(layers, len(pairs), width, dtype=torch.uint8), numbers, k)
    for row, (ours, theirs) in enumerate(pairs):
        routes = torch.stack([ours.routes, theirs.routes])
        real = torch.zeros(1, width, dtype=torch.bool)
        ids = torch.zeros(2, 1, width, k, dtype=torch.int64)
        for place in range(layers):
            real[0, : routes.shape[1]] = (routes[:, :, place] >= 0).all(-1).all(0)
            ids[:, 0, : routes.shape[1]] = routes[:, :, place]
            census.add(place, slice(row, row + 1), real, (ids[0], ids[1]))
    routing = routing_flips(census)
    if routing is None or not routing.tokens:
        raise TokensError(f"{Where(Path(candidate))}: no token has routes in both files.")
    return Flipped(
        reference=display_path(Path(reference)),
        candidate=display_path(Path(candidate)),
        sequences=len(pairs),
        same_tokens=same_tokens,
        flips=routing,
        findings=(),
        map=census.map,
    )


def _joined(
    ours: Sequence[RecordedRoutes], theirs: Sequence[RecordedRoutes]
) -> list[tuple[RecordedRoutes, RecordedRoutes]]:
    """Pairs of sequences of the two files that are the same tokens, matched by id or by position."""
    files = [Where(side[0].where.path) for side in (ours, theirs)]
    if all(record.id is not None for record in (*ours, *theirs)):
        by_id = [_by_id(side) for side in (ours, theirs)]
        for records, partners, file in ((by_id[0], by_id[1], files[1]), (by_id[1], by_id[0], files[0])):
            for name in records:
                if name not in partners:
                    raise TokensError(f"{file}: no sequence with id {name!r}, which {records[name].where} has.")
        pairs = [(record, by_id[1][name]) for name, record in by_id[0].items()]
    else:
        if len(ours) != len(theirs):
            raise TokensError(
                f"{files[1]}: holds {len(theirs)} sequences; {files[0]} has {len(ours)}. They are joined by position: "
                "give both the same, or an `id` per line."
            )
        pairs = list(zip(ours, theirs, strict=True))
    return pairs


def _by_id(side: Sequence[RecordedRoutes]) -> dict[str, RecordedRoutes]:
    records: dict[str, RecordedRoutes] = {}
    for record in side:
        assert record.id is not None, "checked before"
        if record.id in records:
            raise TokensError(f"{record.where}: id {record.id!r} is given twice, before in {records[record.id].where}.")
        records[record.id] = record
    return records


def _same_tokens(ours: RecordedRoutes, theirs: RecordedRoutes) -> bool:
    """Whether both give token ids, which then are the same; raises TokensError if they differ."""
    kind = "sequence" if "sequence" in ours.tokens.keys() & theirs.tokens.keys() else "completion"
    token_lists = [side.tokens.get(kind, side.tokens.get("sequence")) for side in (ours, theirs)]
    if token_lists[0] is None or token_lists[1] is None:
        return False
    # If one side gives only a completion, it is compared with the end of the other side's sequence.
    shared = kind in ours.tokens.keys() & theirs.tokens.keys()
    count = None if shared else min(map(len, (token_lists[0], token_lists[1])))
    a, b = (ids if count is None else ids[len(ids) - count :] for ids in (token_lists[0], token_lists[1]))
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        raise TokensError(
            f"{theirs.where}: the {kind}'s token ids differ from those of {ours.where}, first at {at}. Let both "
            "engines run the same tokens: routes of different ones say nothing of numerics."
        )
    return True


def _layers(pairs: Sequence[tuple[RecordedRoutes, RecordedRoutes]]) -> list[int]:
    """The layers' numbers in the model, the same for all sequences of both files; raises TokensError if they differ.

    A file whose record has dense layers too (all zeros) gives the model's numbers. A file without them numbers its MoE
    layers from 0, and the other file's numbers are taken.
    """
    pattern, _ = pairs[0]
    for ours, theirs in pairs:
        _check_same(ours, theirs)
        if ours.routes.shape[1:] != pattern.routes.shape[1:]:
            raise TokensError(f"{ours.where}: {_shape(ours)}; {pattern.where} has {_shape(pattern)}.")
    default = tuple(range(pattern.routes.shape[1]))
    numberings = {
        side.layers: side.where for pair in reversed(pairs) for side in reversed(pair) if side.layers != default
    }
    if len(numberings) > 1:
        (numbers, place), (other_numbers, other_place) = list(numberings.items())[-2:]
        raise TokensError(
            f"{place}: records the layers {list(numbers)}; {other_place} has {list(other_numbers)}. Record the same "
            "ones."
        )
    return list(next(iter(numberings), default))


def _check_same(ours: RecordedRoutes, theirs: RecordedRoutes) -> None:
    if ours.routes.shape[1:] != theirs.routes.shape[1:]:
        raise TokensError(
            f"{theirs.where}: {_shape(theirs)}; {ours.where} has {_shape(ours)}. Record the same layers and top_k; "
            "dense layers do not count where they are all zeros."
        )
    if len(ours.routes) != len(theirs.routes):
        raise TokensError(
            f"{theirs.where}: routes of {len(theirs.routes)} tokens; {ours.where} has {len(ours.routes)}. Record the "
            "same tokens; where one engine leaves out the last, which it does not run, leave it out of both."
        )


def _shape(record: RecordedRoutes) -> str:
    layers, k = record.routes.shape[1:]
    return f"{layers} layers, top {k}"
