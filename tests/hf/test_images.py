"""Models behind vision towers on text and images, live and bit for bit: what transformers' tower gives is recorded, and
what comes behind it computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.bisection.prepare import prepare
from moeparity.bisection.sample import generate
from moeparity.engine.forward import forward
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from moeparity.plan.schedule.steps import Schedule, Step, rectangle
from tests.checkpoint_factory import FILE
from tests.hf.compare import DTYPES, LIVE, PROFILES, assert_is, opened
from tests.hf.reference import Routes, Truth, routed
from tests.hf.test_schedules import without_end
from tests.images import FIELDS, ONE, ROW, TEXT, TWO, Part, Sample, load, make_with_images, sample
from tests.verified import record_plan

CASES = {"text": TEXT, "one image": ONE, "two images": TWO, "an image of one row": ROW}
EVERY = [pytest.param(profile, dtype, id=f"{profile}-{dtype}") for profile in PROFILES for dtype in ("bf16", "fp32")]


BY_MODEL = pytest.mark.parametrize("checkpoint", FIELDS, indirect=True)


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = getattr(request, "param", "qwen3_vl_moe")
    return make_with_images(name, tmp_path_factory.mktemp(name))


def call_arguments(model: Model, of: Sample, live: Any) -> dict[str, Any]:
    """What `forward` is given beside the ids: images as the live tower makes them, and the mask of padding."""
    return {"images": of.images(live), "attention_mask": of.mask if bool((of.mask == 0).any()) else None}


def truth(live: Any, of: Sample) -> Truth:
    live.model.rope_deltas = None
    mask = of.mask if bool((of.mask == 0).any()) else None
    with routed(live) as routes, torch.no_grad():
        logits = live(of.ids, attention_mask=mask, use_cache=False, **of.arguments(live)).logits
    return logits, routes


@pytest.mark.parametrize(("profile", "dtype"), EVERY)
@BY_MODEL
def test_logits_and_routes(checkpoint: Path, profile: str, dtype: str) -> None:
    model, live = opened(checkpoint), load(checkpoint, profile, DTYPES[dtype])
    for parts in CASES.values():
        for side in ("right", "left"):
            of = sample(parts, side)
            ours = forward(model, of.ids, profile=profile, dtype=dtype, **call_arguments(model, of, live))
            assert_is(model, ours, truth(live, of))
    record_plan(model, LIVE, profile=profile, dtype=dtype)


def test_positions_and_images_matter(checkpoint: Path) -> None:
    """Else the equality above would show less than it says."""
    model, live, of = opened(checkpoint), load(checkpoint, "hf-eager", torch.bfloat16), sample(ROW)
    images = of.images(live)
    plain = forward(model, of.ids, images=images)["logits"]
    turned = {**images, "image_grid_thw": images["image_grid_thw"][:, [0, 2, 1]]}
    less = {**images, "deepstack_embeds": torch.zeros_like(images["deepstack_embeds"])}
    flipped = {**images, "image_embeds": images["image_embeds"].flip(0)}
    for changed in (turned, less, flipped):
        assert not same_bits(plain, forward(model, of.ids, images=changed)["logits"])


@pytest.mark.parametrize(("profile", "dtype"), EVERY)
@pytest.mark.parametrize("parts", [TWO, TEXT], ids=["two images", "text"])
@BY_MODEL
def test_generate_with_padding_in_front(
    checkpoint: Path, profile: str, dtype: str, parts: Sequence[Sequence[Part]]
) -> None:
    """Steps of decode against a filled cache, whose positions go on from those of the images."""
    model, live, of, new = opened(checkpoint), load(checkpoint, profile, DTYPES[dtype]), sample(parts, "left"), 4
    live.model.rope_deltas = None
    with torch.no_grad(), without_end(live):
        output: Any = live.generate(
            of.ids,
            attention_mask=of.mask,
            max_new_tokens=new,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=0,
            suppress_tokens=[500, 501],
            **of.arguments(live),
        )
    sequences, prompt = of.ids.shape
    edges = range(prompt, prompt + new)
    first = Step(
        spans=rectangle(0, sequences, 0, prompt, "prefill").spans, phase="prefill", scored=tuple(range(sequences))
    )
    decode = [rectangle(0, sequences, start, end, "decode") for start, end in pairwise(edges)]
    ours = forward(
        model,
        output.sequences[:, : edges[-1]],
        images=of.images(live),
        attention_mask=torch.cat([of.mask, torch.ones(sequences, new - 1, dtype=torch.int64)], 1),
        profile=profile,
        dtype=dtype,
        schedule=Schedule(steps=(first, *decode), positions="tokens"),
    )["logits"]
    assert same_bits(torch.stack(output.logits, 1).float(), ours[:, prompt - 1 :].float())


@pytest.mark.parametrize("profile", PROFILES)
def test_each_micro_batch_counts_for_itself(checkpoint: Path, profile: str) -> None:
    """transformers counts columns where no sequence of a call has an image, and real tokens where one has."""
    model, live, of = opened(checkpoint), load(checkpoint, profile, torch.float32), sample((*TEXT, *TWO), "left")
    images = of.images(live)
    ours = forward(model, of.ids, profile=profile, dtype="fp32", images=images, attention_mask=of.mask, micro_batch=2)
    texts = Sample(of.ids[:2], of.mask[:2], of.pixels[:0], of.grids[:0])
    pictures = Sample(of.ids[2:], of.mask[2:], of.pixels, of.grids)
    parts = [truth(live, part) for part in (texts, pictures)]
    routes: Routes = [
        (torch.cat([ids for ids, _ in layer]), torch.cat([weights for _, weights in layer]))
        for layer in zip(*(routes for _, routes in parts), strict=True)
    ]
    assert_is(model, ours, (torch.cat([logits for logits, _ in parts]), routes))


def test_text_is_sampled_behind_images(checkpoint: Path, tmp_path: Path) -> None:
    """Prompts of unlike lengths, continued greedily: each token is the likeliest of a live forward before it."""
    live, of, new = load(checkpoint, "hf-eager", torch.bfloat16), sample(TWO), 3
    save_file({"input_ids": of.ids, "attention_mask": of.mask, **of.images(live)}, tmp_path / "prompts.safetensors")
    (tmp_path / "recipe.yaml").write_text(
        f"kind: recipe\ncheckpoint: {checkpoint}\n"
        f"tokens: {{file: prompts.safetensors, sample: {{from: candidate, new_tokens: {new}, temperature: 0}}}}\n"
        "reference: {profile: hf-default, micro_batch: 1}\ncandidate: {profile: hf-eager, micro_batch: 1}\n"
        "gate: {metric: k3, below: 1.0}\n",
        "utf-8",
    )
    tokens = generate(prepare(tmp_path / "recipe.yaml", device="cpu")).tokens
    assert tokens.images is not None
    for row, scored in enumerate(tokens.loss_mask):
        ids, mask = tokens.input_ids[row : row + 1], tokens.attention_mask[row : row + 1].long()
        grids = torch.tensor(tokens.images.grids[row])
        before = sum(len(grids_of) for grids_of in tokens.images.grids[:row])
        patches = [int(grid.prod()) for grid in of.grids]
        start = sum(patches[:before])
        pixels = of.pixels[start : start + int(grids.prod(-1).sum())]
        logits, _ = truth(live, Sample(ids[mask.bool()][None], torch.ones_like(ids[mask.bool()])[None], pixels, grids))
        likeliest = torch.zeros_like(ids)
        likeliest[mask.bool()] = logits.argmax(-1)
        assert int(scored.sum()) == new
        for place in scored.nonzero().flatten().tolist():
            assert int(ids[0, place]) == int(likeliest[0, place - 1])


@pytest.mark.parametrize("profile", PROFILES)
def test_the_hubs_layout(checkpoint: Path, tmp_path: Path, profile: str) -> None:
    """Experts in stacks with inputs first, as Qwen published them; transformers 5 saves them with outputs first."""
    tensors = load_file(checkpoint / FILE)
    hub = {name: tensor.mT.contiguous() if ".experts." in name else tensor for name, tensor in tensors.items()}
    assert any(hub[name].shape != tensor.shape for name, tensor in tensors.items())
    save_file(hub, tmp_path / FILE, {"format": "pt"})
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    model, live, of = opened(tmp_path), load(tmp_path, profile, torch.bfloat16), sample(ONE)
    assert_is(model, forward(model, of.ids, profile=profile, **call_arguments(model, of, live)), truth(live, of))
