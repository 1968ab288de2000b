"""Ranks a file of prompts by how likely they are to flip in the candidate, with one pass of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from moeparity.bisection.flips.observe import rankings
from moeparity.bisection.kernels import settings_of
from moeparity.bisection.mine.observe import SHARE, Gate, GateNoise, NearTies, lift
from moeparity.bisection.mine.report import Calibration, Check, Lifts, Mined, MinedPrompt, MinedToken
from moeparity.bisection.options import Options
from moeparity.bisection.prepare import prepare
from moeparity.bisection.resume.codec import Codec, classes_of
from moeparity.bisection.resume.fingerprint import digest
from moeparity.bisection.runs.folder import open_run
from moeparity.bisection.study import Study
from moeparity.bisection.trials import walker
from moeparity.engine.view import Observer
from moeparity.engine.walker import Walker
from moeparity.errors import MoeparityError, SpecError, Where, display_path
from moeparity.inputs.model import checked_tokens
from moeparity.inputs.tokens import TokenSet, read_tokens
from moeparity.inputs.tokens.images import refuse_images
from moeparity.numerics.bits import int_view
from moeparity.plan.graph import Node
from moeparity.plan.sides import REFERENCE, Side
from moeparity.plan.toggles import mixed, swap
from moeparity.progress import Callback

CALIBRATED = 32
DRAWS = 64
_GATED = "the candidate's gates on the reference's inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class MineRequest:
    """What to mine: the token file `file` (text is read with `tokenizer`, None: the recipe's), and how many to report
    (`top`).

    calibrate: how many of the recipe's sequences both sides run first. draws: of noise, per layer. check: also run both
    sides on the `top` prompts and on as many random ones.
    """

    file: Path
    top: int
    tokenizer: str | None = None
    calibrate: int = CALIBRATED
    draws: int = DRAWS
    seed: int = 0
    check: bool = False


def mine(
    recipe: str | Path,
    request: MineRequest,
    *,
    device: str = "auto",
    allow_code: bool = False,
    memory_limit: float | None = None,
    progress: Callback | None = None,
    run: str | Path | None = None,
) -> Mined:
    """Rank prompts and their tokens by their probability to flip.

    Both sides run a few of the recipe's own sequences, which shows how far the candidate's numerics move each gate's
    logits; then the reference alone runs the prompts. `run` is a folder that keeps the run. Raises MoeparityError, also
    if the model has no router.
    """
    options = Options(attribution=False, allow_code=allow_code, memory_limit=memory_limit)
    request_fields = {**asdict(request), "file": display_path(request.file)}
    with open_run(run, "mine", recipe, {"device": device, **request_fields}) as folder:
        study = prepare(Path(recipe), device=device, options=options, progress=progress)
        study.refuse_recorded("moeparity flips --mine")
        miner = _Miner.of(study, request, progress)
        prompts = _read(study, request)
        if folder is None:
            return _mined(miner, prompts)
        identity = {"request": digest({**request_fields, "file": None}), "prompts": digest(prompts)}
        folder.admit(study, progress, extra=identity)
        pieces = folder.pieces(Codec(classes_of(Mined)))
        result = folder.once(pieces, "mine", lambda: _mined(miner, prompts))
        folder.finish(result)
    return result


def _mined(miner: _Miner, prompts: TokenSet) -> Mined:
    study = miner.study
    calibration = _first(study.tokens, miner.request.calibrate)
    gate_noise = miner.run_both(calibration)
    if not gate_noise.noise:
        raise SpecError(f"{Where(study.path)}: no router and gate run on both sides, so nothing can be predicted.")
    near_ties = miner.predict(prompts, gate_noise)
    return miner.report(prompts, near_ties, calibration, gate_noise)


@dataclass(frozen=True, slots=True)
class _Miner:
    study: Study
    request: MineRequest
    progress: Callback | None
    gates: dict[str, Gate]
    routers: dict[str, Node]

    @classmethod
    def of(cls, study: Study, request: MineRequest, progress: Callback | None) -> _Miner:
        """The miner of a study. Raises SpecError for a model without routers, and where the weights change."""
        if any(side.schedule.versions for side in study.sides.values()):
            raise SpecError(
                f"{Where(study.path)}: the weights change under this recipe's sequences (`updates`), and other tokens "
                "have no such places. Mine a recipe without `updates`."
            )
        nodes = study.model.graph.nodes
        routers = {node.name: node for node in nodes if node.op.role.routes}
        if not routers:
            raise SpecError(f"{Where(study.path)}: {study.model.graph.model_type} has no router, so nothing can flip.")
        gates = {name: _gate(study, study.model.graph.makers[router.inputs[0]]) for name, router in routers.items()}
        return cls(study, request, progress, gates, routers)

    def run_both(self, tokens: TokenSet) -> GateNoise:
        """Run both sides on the same tokens."""
        gate_noise = GateNoise(self.gates, self._mask(tokens))
        walkers = [self._walker(name, side, tokens) for name, side in self.study.sides.items()]
        self._run(walkers, tokens, gate_noise)
        return gate_noise

    def predict(self, tokens: TokenSet, gate_noise: GateNoise) -> NearTies:
        """Run the reference once, and beside it the candidate's gates on the reference's inputs."""
        study, nodes = self.study, [n for n in self.study.model.graph.nodes if n.op.role.gates or n.op.role.routes]
        toggle = swap(_GATED, (node.name for node in nodes), study.reference, study.candidate)
        gate_side = study.reference if toggle is None else mixed(study.reference, [toggle], study.candidate)
        # The gates run in the candidate's steps, since its choices may differ by phase.
        gate_side = replace(gate_side, schedule=study.candidate.schedule)
        near_ties = NearTies(
            gate_walker=_GATED,
            gates=self.gates,
            routers={
                name: (rankings(study, study.reference, node), rankings(study, study.candidate, node))
                for name, node in self.routers.items()
            },
            noise=gate_noise.noise,
            attention_mask=self._mask(tokens),
            draws=self.request.draws,
            seed=self.request.seed,
        )
        walkers = [self._walker(REFERENCE, study.reference, tokens), self._walker(_GATED, gate_side, tokens, REFERENCE)]
        self._run(walkers, tokens, near_ties)
        return near_ties

    def report(self, prompts: TokenSet, near_ties: NearTies, calibration: TokenSet, gate_noise: GateNoise) -> Mined:
        """The prompts and tokens ranked first, with the outcome of a check if one is asked for."""
        mask, probability = prompts.attention_mask, near_ties.probability.cpu()
        expected_flips, counts = probability.sum(-1), mask.sum(-1)
        order = (expected_flips / counts).sort(descending=True, stable=True).indices
        repeats = _repeats(prompts, calibration)
        return Mined(
            reference=self.study.recipe.reference.profile,
            candidate=self.study.recipe.candidate.profile,
            calibration=Calibration(
                sequences=len(calibration.input_ids),
                tokens=int(calibration.attention_mask.sum()),
                flipped=int(gate_noise.flip_mask.sum()),
            ),
            prompts_read=len(mask),
            tokens_read=int(counts.sum()),
            expected=float(expected_flips.sum()),
            repeated=len(repeats),
            draws=self.request.draws,
            prompts=tuple(_prompt(prompts, probability, row) for row in order[: self.request.top].tolist()),
            tokens=tuple(self._tokens(prompts, near_ties)),
            check=self._check(prompts, near_ties, order.tolist(), repeats) if self.request.check else None,
        )

    def _tokens(self, prompts: TokenSet, near_ties: NearTies) -> list[MinedToken]:
        layers = [-1 if node.layer is None else node.layer for node in self.routers.values()]
        rows, columns = prompts.attention_mask.nonzero(as_tuple=True)
        top_rows = (
            _scores(near_ties).cpu()[rows, columns].sort(descending=True, stable=True).indices[: self.request.top]
        )
        return [
            MinedToken(
                prompt=row,
                position=column,
                token=int(prompts.input_ids[row, column]),
                probability=float(near_ties.probability[row, column]),
                layer=layers[int(near_ties.layer[row, column])],
                margin=float(near_ties.margin[row, column]),
            )
            for row, column in zip(rows[top_rows].tolist(), columns[top_rows].tolist(), strict=True)
        ]

    def _check(self, prompts: TokenSet, near_ties: NearTies, order: Sequence[int], repeats: set[int]) -> Check:
        """Run both sides on the mined prompts and on as many random ones; none of them is in the calibration."""
        new_rows = [row for row in order if row not in repeats]
        if not new_rows:
            raise MoeparityError(
                f"{Where(self.request.file)}: every prompt is among the {self.request.calibrate} sequences that the "
                "prediction was calibrated on. Give others, or calibrate on fewer."
            )
        top_rows = new_rows[: self.request.top]
        generator = torch.Generator().manual_seed(self.request.seed)
        random_rows = [
            new_rows[i] for i in torch.randperm(len(new_rows), generator=generator)[: self.request.top].tolist()
        ]
        rows = sorted({*top_rows, *random_rows})
        gate_noise = self.run_both(_rows(prompts, rows))
        place = {row: i for i, row in enumerate(rows)}
        return Check(
            drawn=self._lifts(random_rows, place, near_ties, gate_noise),
            mined=self._lifts(top_rows, place, near_ties, gate_noise),
        )

    def _lifts(self, rows: Sequence[int], place: dict[int, int], near_ties: NearTies, gate_noise: GateNoise) -> Lifts:
        mask = near_ties.attention_mask[rows]
        flip_mask = gate_noise.flip_mask[[place[row] for row in rows]][:, : mask.shape[1]][mask].cpu()
        share = float(flip_mask.double().mean())
        return Lifts(
            prompts=len(rows),
            tokens=len(flip_mask),
            flipped=int(flip_mask.sum()),
            expected=float(near_ties.probability[rows][mask].sum()),
            share=SHARE,
            lift=lift(_scores(near_ties)[rows][mask].cpu(), flip_mask),
            margin_lift=lift(-near_ties.margin[rows][mask].cpu(), flip_mask),
            ceiling=1 / max(share, SHARE) if share else float("nan"),
        )

    def _mask(self, tokens: TokenSet) -> Tensor:
        return tokens.attention_mask.to(self.study.model.device)

    def _walker(self, name: str, side: Side, tokens: TokenSet, inputs_of: str | None = None) -> Walker:
        return walker(self.study.on(tokens), name, side, inputs_of=inputs_of)

    def _run(self, walkers: Sequence[Walker], tokens: TokenSet, observer: Observer) -> None:
        self.study.on(tokens).passes(self.progress).run(walkers, [observer])


def _gate(study: Study, node: Node) -> Gate:
    weight = partial(_weight, study, node, study.reference.plan.dtype_of(node.name))
    side = study.candidate
    by_case = {case: settings_of(study, side, case).at(node) for case in side.plan.phases}
    return Gate(weight=weight, outputs={case: at["output"] for case, at in by_case.items()})


def _weight(study: Study, node: Node, dtype: str) -> Tensor:
    """The gate's weight, read anew for each router that asks, since the gates of all layers together may be large."""
    return study.model.weights.node(node, dtype)["weight"]


def _read(study: Study, request: MineRequest) -> TokenSet:
    tokenizer = request.tokenizer or study.recipe.tokens.tokenizer
    named_at = Where(study.path, study.recipe.tokens.line_of("tokenizer"))
    if request.tokenizer is not None:
        named_at = Where(Path("--tokenizer"))
    tokens = read_tokens(
        request.file,
        checkpoint=study.model.folder,
        tokenizer=tokenizer,
        named_at=named_at,
        padding=study.recipe.tokens.padding,
        scored=False,
    )
    checked_tokens(tokens.input_ids, study.model, str(Where(request.file)))
    refuse_images(tokens.images, tokens.input_ids, study.model.graph, Where(request.file))
    return tokens


def _scores(near_ties: NearTies) -> Tensor:
    """What tokens are ranked by, fp64 [B, T]: the probability; among equal ones the smaller margin is first.

    Different probabilities are further apart than the margin's term is large.
    """
    return near_ties.probability - 1e-9 * near_ties.margin.clamp(max=1e3)


def _prompt(tokens: TokenSet, probability: Tensor, row: int) -> MinedPrompt:
    mask = tokens.attention_mask[row]
    probabilities = probability[row, mask]
    return MinedPrompt(
        prompt=row,
        tokens=int(mask.sum()),
        expected=float(probabilities.sum()),
        input_ids=tuple(tokens.input_ids[row, mask].tolist()),
        mask=tuple(tokens.loss_mask[row, mask].int().tolist()),
        probability=tuple(probabilities.tolist()),
    )


def _first(tokens: TokenSet, count: int) -> TokenSet:
    return _rows(tokens, range(min(count, len(tokens.input_ids))))


def _rows(tokens: TokenSet, rows: Sequence[int]) -> TokenSet:
    """Some of the sequences, without records."""
    indices = list(rows)
    return TokenSet(
        input_ids=tokens.input_ids[indices],
        loss_mask=tokens.loss_mask[indices],
        attention_mask=tokens.attention_mask[indices],
        images=None if tokens.images is None else tokens.images.of_rows(indices),
        requests=tuple(tokens.requests[row] for row in indices) if tokens.requests else (),
    )


def _repeats(prompts: TokenSet, calibration: TokenSet) -> set[int]:
    """The rows of prompts that have the same ids, and show the same images, as some sequence of the calibration."""
    calibrated = set(_sequences(calibration))
    return {row for row, sequence in enumerate(_sequences(prompts)) if sequence in calibrated}


def _sequences(tokens: TokenSet) -> list[tuple[tuple[int, ...], bytes]]:
    """What tells sequences apart: their ids, and the bits of what a vision tower gave for their images."""
    ids = [tuple(row[mask].tolist()) for row, mask in zip(tokens.input_ids, tokens.attention_mask, strict=True)]
    images = tokens.images
    if images is None:
        return [(row, b"") for row in ids]
    shown = (int_view(embeds[mask]).numpy().tobytes() for embeds, mask in zip(images.embeds, images.mask, strict=True))
    return list(zip(ids, shown, strict=True))
