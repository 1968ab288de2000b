"""Weights streamed segment by segment: the same bits, each tensor read once, and gone when its segment is done."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from moeparity.engine.forward import forward
from moeparity.engine.lockstep import run
from moeparity.engine.view import NodeView, Observer
from moeparity.engine.walker import Walker
from moeparity.errors import Where
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.weights.loaded import Loaded
from moeparity.inputs.weights.store import Residency
from moeparity.numerics.bits import same_bits
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.graph import Segment
from moeparity.plan.schedule.steps import MicroBatches, Schedule, rectangle
from tests.checkpoint_factory import FILE

IDS = torch.arange(33).view(3, 11)


def walk(model: Model, *observers: Observer) -> int:
    """One pass of one variant; returns the bytes read."""
    plan = bind(model.graph, load_profile("hf-eager", Where(Path("test"))), model.dtype)
    return run([Walker(name="only", plan=plan, schedule=MicroBatches(2))], model.weights, IDS, observers).bytes_read


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


# A tied head takes the embedding a second time, and latents are expanded by one node and absorbed by another.
READ_TWICE: dict[str, list[str]] = {
    "qwen3_moe": [],
    "deepseek_v3": [f"model.layers.{layer}.self_attn.kv_b_proj.weight" for layer in range(3)],
    "qwen3": ["model.embed_tokens.weight"],
}


@pytest.mark.parametrize("name", READ_TWICE)
def test_a_streamed_pass_reads_every_tensor_the_graph_names(request: pytest.FixtureRequest, name: str) -> None:
    folder = request.getfixturevalue(name)
    sizes = {key: tensor.nbytes for key, tensor in load_file(folder / FILE).items()}
    expected = sum(sizes.values()) + sum(sizes[key] for key in READ_TWICE[name])
    streamed, resident = opened(folder, "stream"), opened(folder, "resident")
    assert [walk(streamed), walk(streamed)] == [expected, expected]
    assert [walk(resident), walk(resident)] == [expected, 0]


class Alive:
    """Which of the tensors a store handed out are alive, by segment, and how many bytes they have."""

    def __init__(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order = [segment.name for segment in model.graph.segments]
        self.segment_of = {node.name: segment.name for segment in model.graph.segments for node in segment.nodes}
        self.tensors_of: dict[str, list[weakref.ref[torch.Tensor]]] = {}
        self.sizes: dict[str, int] = {}
        self.finished: dict[str, set[str]] = {}
        self.most = 0
        load = model.weights.load

        def watched(segment: Segment, dtypes: tuple[str, ...]) -> Loaded:
            loaded = load(segment, dtypes)
            tensors = [tensor for weights in loaded.values() for tensor in weights.values()]
            self.tensors_of[segment.name] = [weakref.ref(tensor) for tensor in tensors]
            self.sizes[segment.name] = sum(tensor.nbytes for tensor in tensors)
            return loaded

        monkeypatch.setattr(model.weights, "load", watched)

    def see(self, view: NodeView) -> None:
        segment = self.segment_of[view.node.name]
        done = self.order[: self.order.index(segment)]
        alive = {s for s in done if any(ref() is not None for ref in self.tensors_of[s])}
        self.finished.setdefault(segment, set()).update(alive)
        self.most = max(self.most, self.bytes())

    def bytes(self) -> int:
        live_bytes = {
            id(t): t.nbytes for refs in list(self.tensors_of.values()) for ref in list(refs) if (t := ref()) is not None
        }
        return sum(live_bytes.values())


def test_resident_weights_stay(qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(qwen3_moe, "resident")
    alive = Alive(model, monkeypatch)
    walk(model, alive)
    assert alive.finished == {name: set(alive.order[: alive.order.index(name)]) for name in alive.order}


def test_streamed_weights_are_freed_once_the_pass_has_moved_on(
    qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody may write over them, at once and without the cycle collector."""
    model = opened(qwen3_moe, "stream")
    segments = model.weights.segments
    monkeypatch.setattr(model.weights, "segments", lambda dtypes, **_: segments(dtypes, reuse=False))
    alive = Alive(model, monkeypatch)
    walk(model, alive)
    assert all(alive.tensors_of[name] for name in alive.order)
    assert alive.finished == {name: set() for name in alive.order}


def test_memory_of_finished_experts_is_written_to_again(qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than two layers, embedding and head are held; experts lie where those of the layer before last lay."""
    model = opened(qwen3_moe, "stream")
    alive = Alive(model, monkeypatch)
    walk(model, alive)
    assert alive.most <= 2 * max(alive.sizes.values()) + alive.sizes["before"] + alive.sizes["after"]
    # What lay in layer 0 is layer 2's now; the embedding is gone, and layer 1's waits for a layer that does not come.
    assert alive.finished["layers[2]"] == {"layers[0]", "layers[1]"}
    assert alive.finished["layers[1]"] == {"layers[0]"}
    assert alive.bytes() == 0, "nothing is kept after the pass"


def test_users_functions_may_keep_what_they_are_given(qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(qwen3_moe, "stream")
    reuses: list[bool] = []
    segments = model.weights.segments

    def watched(dtypes: Sequence[str], *, reuse: bool) -> object:
        reuses.append(reuse)
        return segments(dtypes, reuse=reuse)

    monkeypatch.setattr(model.weights, "segments", watched)
    plan = bind(model.graph, load_profile("hf-eager", Where(Path(__file__))), model.dtype)
    for functions in ({}, {"kernels:f": len}):
        run([Walker(name="a", plan=plan, schedule=MicroBatches(3), functions=functions)], model.weights, IDS, [])
    assert reuses == [True, False]


def test_a_rollout_of_many_steps_reads_the_weights_once(qwen3_moe: Path) -> None:
    """As many steps of decode as there are tokens behind the prompt, and no byte more than a prefill reads."""
    model = opened(qwen3_moe, "stream")
    profile = load_profile("hf-eager", Where(Path("test")))
    ids = torch.randint(0, model.vocab_size, (2, 204), generator=torch.Generator().manual_seed(0))
    steps = (rectangle(0, 2, 0, 4, "prefill"), *(rectangle(0, 2, t, t + 1, "decode") for t in range(4, 204)))
    decoded = Walker(
        name="decoded",
        plan=bind(model.graph, profile, model.dtype, phases=("prefill", "decode")),
        schedule=Schedule(steps=steps),
    )
    whole = Walker(name="whole", plan=bind(model.graph, profile, model.dtype), schedule=MicroBatches(2))
    once, rollout = (run([walker], model.weights, ids, []) for walker in (whole, decoded))
    assert rollout.bytes_read == once.bytes_read > 0
    assert rollout.evaluations["layers[0].attention.attend"] == 201
    # Its steps are joined to one call, which decides of each of them how its rows are computed.
    assert rollout.evaluations["layers[0].attention.q_proj"] == 1
    assert rollout.evaluations["layers[0].attention.residual"] == 1
