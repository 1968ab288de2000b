"""The routing flips of a recipe's two sides, or of two engines that recorded their routes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from moeparity.bisection.expectations import expectations
from moeparity.bisection.flips.measure import routing_flips
from moeparity.bisection.flips.observe import MAP_BITS, Census
from moeparity.bisection.flips.report import RoutingFlips
from moeparity.bisection.pipeline import passes
from moeparity.bisection.prepare import Options
from moeparity.bisection.summarise import summarise
from moeparity.errors import SpecError, TokensError, Where, display_path
from moeparity.inputs.tokens.routelog import RecordedRoutes, read_routes
from moeparity.output.files import write_tensors
from moeparity.output.findings import CODES, Finding, combined
from moeparity.output.json import to_json
from moeparity.plan.spec.expect import Expect
from moeparity.progress import Callback

SCHEMA = "moeparity.flips/1"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""

MAP_SCHEMA = "moeparity.flip-map/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flipped:
    """The flips of a candidate against a reference, and the map they are counted in.

    reference, candidate: a side in words, or a file of recorded routes. findings: of the recipe's `expect: flips`.
    same_tokens: of recorded routes, in how many sequences both files give token ids, which agree; None for a recipe.
    map: uint8 [MoE layers, sequences, tokens], the bits of `observe.MAP_BITS`; `write_map` writes it.
    """

    reference: str
    candidate: str
    sequences: int
    same_tokens: int | None
    flips: RoutingFlips
    findings: tuple[Finding, ...]
    map: torch.Tensor = field(metadata={"json": False})

    @property
    def exit_code(self) -> int:
        """0, unless the recipe bounds its flips and a bound is not met: 1."""
        return combined([CODES[f.status] for f in self.findings] or [0])

    def to_json(self) -> str:
        """Everything but the map as strict JSON; numbers that are not finite are the words nan, inf or -inf."""
        return to_json(SCHEMA, self)

    def write_map(self, path: Path) -> None:
        """Write the map as a safetensors file: `flips`, and `layers` int64, the model's number of each."""
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
) -> Flipped:
    """Run a recipe, its toggles included, and look at the candidate's routing flips only.

    Raises MoeparityError as `moeparity.bisect` does, and where no router runs on both sides.
    """
    options = Options(split=0, floor=False, oracle=False, allow_code=allow_code, memory_limit=memory_limit)
    plan, observed = passes(recipe, device=device, options=options, progress=progress)
    report, graph = summarise(plan, observed), plan.model.graph
    if report.flips is None:
        inside = any(node.op.routes for node in graph.nodes)
        why = "every router lies inside a user's function" if inside else "has no router, so nothing can flip"
        raise SpecError(f"{Where(plan.path)}: {graph.model_type}: {why}. Use bisect.")
    bounds = plan.recipe.expect.flips
    expected = () if bounds is None else expectations(Expect(flips=bounds), graph, Where(plan.path))
    judged = ((expectation.says, *expectation.judge(report)) for expectation in expected)
    return Flipped(
        reference=str(report.reference),
        candidate=str(report.candidate),
        sequences=report.run.sequences,
        same_tokens=None,
        flips=report.flips,
        findings=tuple(Finding(expectation=says, status=status, found=value) for says, status, value in judged),
        map=observed.sections["flips"].map,
    )


def logged_flips(reference: str | Path, candidate: str | Path, *, top_k: int | None = None) -> Flipped:
    """The flips between the routes that two engines recorded of the same tokens; no weights needed.

    Sequences are joined by their ids where both files give them, else by position. `top_k` as in `read_routes`.
    Raises TokensError for files that cannot be read or are not of the same tokens, layers and top_k.
    """
    pairs = _joined(*(read_routes(Path(path), top_k=top_k) for path in (reference, candidate)))
    same = sum(_same_tokens(one, other) for one, other in pairs)
    numbers = _layers(pairs)
    layers, k = pairs[0][0].routes.shape[1:]
    width = max(len(one.routes) for one, _ in pairs)
    census = Census(torch.zeros(layers, len(pairs), width, dtype=torch.uint8), numbers, k)
    for row, (ours, theirs) in enumerate(pairs):
        both = torch.stack([ours.routes, theirs.routes])
        real = torch.zeros(1, width, dtype=torch.bool)
        ids = torch.zeros(2, 1, width, k, dtype=torch.int64)
        for place in range(layers):
            real[0, : both.shape[1]] = (both[:, :, place] >= 0).all(-1).all(0)
            ids[:, 0, : both.shape[1]] = both[:, :, place]
            census.add(place, slice(row, row + 1), real, (ids[0], ids[1]))
    found = routing_flips(census)
    if found is None or not found.tokens:
        raise TokensError(f"{Where(Path(candidate))}: no token has routes in both files.")
    return Flipped(
        reference=display_path(Path(reference)),
        candidate=display_path(Path(candidate)),
        sequences=len(pairs),
        same_tokens=same,
        flips=found,
        findings=(),
        map=census.map,
    )


def _joined(
    ours: Sequence[RecordedRoutes], theirs: Sequence[RecordedRoutes]
) -> list[tuple[RecordedRoutes, RecordedRoutes]]:
    """Sequences of both files that are the same tokens, by id or by position."""
    files = [Where(side[0].where.path) for side in (ours, theirs)]
    if all(one.id is not None for one in (*ours, *theirs)):
        by_id = [_by_id(side) for side in (ours, theirs)]
        for here, there, file in ((by_id[0], by_id[1], files[1]), (by_id[1], by_id[0], files[0])):
            for name in here:
                if name not in there:
                    raise TokensError(f"{file}: no sequence with id {name!r}, which {here[name].where} has.")
        pairs = [(one, by_id[1][name]) for name, one in by_id[0].items()]
    else:
        if len(ours) != len(theirs):
            raise TokensError(
                f"{files[1]}: holds {len(theirs)} sequences; {files[0]} has {len(ours)}. They are joined by position: "
                "give both the same, or an `id` per line."
            )
        pairs = list(zip(ours, theirs, strict=True))
    return pairs


def _by_id(side: Sequence[RecordedRoutes]) -> dict[str, RecordedRoutes]:
    found: dict[str, RecordedRoutes] = {}
    for one in side:
        assert one.id is not None, "checked before"
        if one.id in found:
            raise TokensError(f"{one.where}: id {one.id!r} is given twice, before in {found[one.id].where}.")
        found[one.id] = one
    return found


def _same_tokens(one: RecordedRoutes, other: RecordedRoutes) -> bool:
    """Whether both give token ids of the same; raises TokensError where these differ."""
    what = "sequence" if "sequence" in one.tokens.keys() & other.tokens.keys() else "completion"
    given = [side.tokens.get(what, side.tokens.get("sequence")) for side in (one, other)]
    if given[0] is None or given[1] is None:
        return False
    # Where one side gives a completion alone, it is the end of the other's sequence.
    count = None if what in one.tokens.keys() & other.tokens.keys() else min(map(len, (given[0], given[1])))
    a, b = (ids if count is None else ids[len(ids) - count :] for ids in (given[0], given[1]))
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        raise TokensError(
            f"{other.where}: the {what}'s token ids differ from those of {one.where}, first at {at}. Let both engines "
            "run the same tokens: routes of different ones say nothing of numerics."
        )
    return True


def _layers(pairs: Sequence[tuple[RecordedRoutes, RecordedRoutes]]) -> list[int]:
    """The numbers of the layers, which all sequences of both files share; raises TokensError where they do not.

    A file that holds dense layers too counts them; one without counts its own, and takes the other's numbers.
    """
    first, _ = pairs[0]
    for one, other in pairs:
        _check_same(one, other)
        if one.routes.shape[1:] != first.routes.shape[1:]:
            raise TokensError(f"{one.where}: {_shape(one)}; {first.where} has {_shape(first)}.")
    own = tuple(range(first.routes.shape[1]))
    counted = {side.layers: side.where for pair in reversed(pairs) for side in reversed(pair) if side.layers != own}
    if len(counted) > 1:
        (theirs, there), (mine, here) = list(counted.items())[-2:]
        raise TokensError(f"{there}: records the layers {list(theirs)}; {here} has {list(mine)}. Record the same ones.")
    return list(next(iter(counted), own))


def _check_same(one: RecordedRoutes, other: RecordedRoutes) -> None:
    if one.routes.shape[1:] != other.routes.shape[1:]:
        raise TokensError(
            f"{other.where}: {_shape(other)}; {one.where} has {_shape(one)}. Record the same layers and top_k; dense "
            "layers do not count where they are all zeros."
        )
    if len(one.routes) != len(other.routes):
        raise TokensError(
            f"{other.where}: routes of {len(other.routes)} tokens; {one.where} has {len(one.routes)}. Record the same "
            "tokens; where one engine leaves out the last, which it does not run, leave it out of both."
        )


def _shape(one: RecordedRoutes) -> str:
    layers, k = one.routes.shape[1:]
    return f"{layers} layers, top {k}"
