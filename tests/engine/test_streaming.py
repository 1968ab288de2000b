"""Weights streamed segment by segment: the same bits, each tensor read once, and gone when its segment is done."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from moeparity.engine.lockstep import NodeView, Observer, Walker, run
from moeparity.errors import Where
from moeparity.graph.bind import bind
from moeparity.graph.graph import Segment
from moeparity.graph.profile import load_profile
from moeparity.model import Model, forward, open_model
from moeparity.numerics.bits import same_bits
from moeparity.weights.store import Loaded, Residency
from tests.checkpoint_factory import FILE

IDS = torch.arange(33).view(3, 11)


def walk(model: Model, *observers: Observer) -> int:
    """One pass of one variant; returns the bytes read."""
    plan = bind(model.graph, load_profile("hf-eager", Where(Path("test"))), model.dtype)
    return run([Walker(name="only", plan=plan, micro_batch=2)], model.weights, IDS, observers).bytes_read


def opened(folder: Path, residency: Residency) -> Model:
    return open_model(folder, device="cpu", residency=residency)


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3", "deepseek_v3"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_streamed_and_resident_weights_give_the_same_bits(
    request: pytest.FixtureRequest, name: str, dtype: str
) -> None:
    folder = request.getfixturevalue(name)
    streamed, resident = opened(folder, "stream"), opened(folder, "resident")
    first = forward(streamed, IDS, dtype=dtype)
    for again in (forward(streamed, IDS, dtype=dtype), *(forward(resident, IDS, dtype=dtype) for _ in range(2))):
        assert again.keys() == first.keys()
        assert all(same_bits(again[key], first[key]) for key in first)


# A tied head takes the embedding a second time.
READ_TWICE: dict[str, list[str]] = {"qwen3_moe": [], "deepseek_v3": [], "qwen3": ["model.embed_tokens.weight"]}


@pytest.mark.parametrize("name", READ_TWICE)
def test_a_streamed_pass_reads_every_tensor_the_graph_names(request: pytest.FixtureRequest, name: str) -> None:
    folder = request.getfixturevalue(name)
    sizes = {key: tensor.nbytes for key, tensor in load_file(folder / FILE).items()}
    expected = sum(sizes.values()) + sum(sizes[key] for key in READ_TWICE[name])
    streamed, resident = opened(folder, "stream"), opened(folder, "resident")
    assert [walk(streamed), walk(streamed)] == [expected, expected]
    assert [walk(resident), walk(resident)] == [expected, 0]


@pytest.mark.parametrize("residency", ["stream", "resident"])
def test_weights_of_a_finished_segment(qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch, residency: Residency) -> None:
    """Streamed, they are freed once the pass has moved on, without the cycle collector; resident, they stay."""
    model = opened(qwen3_moe, residency)
    load = model.weights.load
    made: dict[str, list[weakref.ref[torch.Tensor]]] = {}

    def watched(segment: Segment, dtypes: tuple[str, ...]) -> Loaded:
        loaded = load(segment, dtypes)
        made[segment.name] = [weakref.ref(tensor) for weights in loaded.values() for tensor in weights.values()]
        return loaded

    monkeypatch.setattr(model.weights, "load", watched)
    order = [segment.name for segment in model.graph.segments]
    segment_of = {node.name: segment.name for segment in model.graph.segments for node in segment.nodes}
    alive: dict[str, set[str]] = {}

    class Look:
        def see(self, view: NodeView) -> None:
            here = segment_of[view.node.name]
            finished = order[: order.index(here)]
            alive.setdefault(here, set()).update(s for s in finished if any(ref() is not None for ref in made[s]))

    walk(model, Look())
    assert all(made[name] for name in order)
    assert alive == {name: set() if residency == "stream" else set(order[: order.index(name)]) for name in order}
