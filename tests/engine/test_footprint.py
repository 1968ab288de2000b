"""The estimate bounds what a pass really takes, is not far above it, and is refused with advice that is right."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from moeparity.engine.footprint import estimate, require, shown_size
from moeparity.engine.lockstep import run
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.errors import MoeparityError, Where
from moeparity.inputs.model import Model, open_model
from moeparity.ops.attribute import Value
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.faults.stated import earlier
from moeparity.plan.schedule.steps import PHASES, MicroBatches, Schedule, Span, Step, rectangle
from moeparity.plan.schedule.updates import on_versions
from moeparity.plan.spec.variant_schema import StatedFault
from moeparity.plan.token_shapes import token_shapes
from tests.checkpoint_factory import make_random
from tests.small_models import SMALL, fields_of

HERE = Where(Path("test"))
SITES = ("moe.combine:accumulate", "attention.rope:products", "moe.experts:activation", "attention.attend:output")

# Each case's pass in a forked process of its own, which imports nothing again: bytes estimated, and bytes taken beside
# what was held before. The peak is the kernel's own (VmHWM), which misses nothing that is there for a moment only, less
# pages of files; a small pass before it has touched those. The C library gives back what is freed (`MALLOC`), or what
# is taken would go by which blocks it happened to keep.
MEASURE = """
import gc, json, os, re, sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[1])
import moeparity.ops
from tests.warm import load_packages
torch.set_num_threads(1)
load_packages(moeparity.ops)
from moeparity.engine.footprint import estimate
from moeparity.engine.lockstep import run
from moeparity.engine.forward import open_model
from dataclasses import replace
from tests.engine.test_footprint import in_steps, many
def held():
    lines = re.findall(r"(VmHWM|RssAnon|RssFile|RssShmem):\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    return {name: 1024 * int(number) for name, number in lines}
def taken(act):
    before = held()["RssAnon"]
    Path("/proc/self/clear_refs").write_text("5")
    act()
    after = held()
    return after["VmHWM"] - after["RssFile"] - after["RssShmem"] - before
def measure(folder, profile, dtype, sequences, length, micro_batches, variants, log_probs, schedule):
    model = open_model(folder, device="cpu")
    walkers = many(
        model, variants, profile=profile, dtype=dtype, micro_batches=micro_batches, log_probs=log_probs,
        versions=2 * (schedule == "updates"),
    )
    def walk(sequences, length):
        own = walkers
        if schedule:
            own = [replace(walker, schedule=in_steps(schedule, sequences, length)) for walker in walkers]
        ids = torch.randint(0, model.vocab_size, (sequences, length), generator=torch.Generator().manual_seed(0))
        found = estimate(own, model.weights, sequences, length)
        return found, lambda: run(own, model.weights, ids, [])
    walk(2, 8)[1]()
    found, act = walk(sequences, length)
    print(found.total, taken(act), flush=True)
def known(size):
    # Of a known size, there for a moment.
    torch.ones(size, dtype=torch.uint8)
    print(size, taken(lambda: torch.ones(size, dtype=torch.uint8)), flush=True)
gc.freeze()
for given in json.loads(sys.argv[2]):
    child = os.fork()
    if not child:
        known(given) if isinstance(given, int) else measure(*given)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
"""
MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_TOP_PAD_": "0",
}
KNOWN = (20_000_000, 100_000_000)


def many(
    model: Model,
    variants: int,
    *,
    profile: str = "hf-eager",
    dtype: str = "bf16",
    micro_batches: tuple[int, ...] = (4,),
    log_probs: Mapping[str, Value] | None = None,
    versions: int = 0,
) -> list[Walker]:
    """Variants that differ from layer 0 on, all with these settings of `log_probs`, and a shadow; with so many earlier
    versions of the weights.
    """
    other_dtype = "fp32" if dtype == "bf16" else "bf16"
    common = {f"log_probs:{name}": value for name, value in (log_probs or {}).items()}
    sites: list[dict[str, Value]] = [{f"layers[{layer}].{site}": other_dtype} for layer in range(2) for site in SITES]
    settings = [common | values for values in ({}, *sites)][:variants]
    scaled = [[StatedFault(name="weights-scaled", values={"factor": 0.5 + lag})] for lag in range(versions)]
    faults = earlier(model.graph, scaled, (), HERE)
    plans = [
        bind(model.graph, load_profile(profile, HERE), dtype, overrides(dict(o), HERE), phases=PHASES, faults=faults)
        for o in settings
    ]
    sizes = [micro_batches[i % len(micro_batches)] for i in range(len(plans))]
    walkers = [
        Walker(name=f"{i}", plan=p, schedule=MicroBatches(m)) for i, (p, m) in enumerate(zip(plans, sizes, strict=True))
    ]
    return [*walkers, replace(walkers[-1], name="shadow", inputs_of="0")] if variants > 1 else walkers


@dataclass(frozen=True)
class Case:
    """`dominated`: so large that its values, not what is fixed (128 MB on a CPU), decide the estimate."""

    profile: str
    dtype: str
    sequences: int
    length: int
    micro_batches: tuple[int, ...]
    variants: int
    log_probs: Mapping[str, Value] = field(default_factory=dict)
    dominated: bool = True
    schedule: str = ""


def in_steps(name: str, sequences: int, length: int) -> Schedule:
    """A prefill of half of each sequence, then token by token: all at once, or flat, each a step behind the other."""
    half = length // 2
    if name in ("decode", "updates"):
        decode = (rectangle(0, sequences, t, t + 1, "decode") for t in range(half, length))
        steps = (rectangle(0, sequences, 0, half, "prefill"), *decode)
        at = [half, half + 2] if name == "updates" else []
        return Schedule(steps=tuple(on_versions(steps, [at] * sequences)), recomputes=name == "updates")
    spans: list[list[Span]] = [[] for _ in range(sequences + length - half)]
    for sequence in range(sequences):
        spans[sequence].append(Span(sequence, 0, half))
        for t in range(half, length):
            spans[sequence + 1 + t - half].append(Span(sequence, t, t + 1))
    return Schedule(steps=tuple(Step(spans=tuple(spans_here), shape="flat", phase="chunk") for spans_here in spans))


# Sequences so short that the vocabulary outweighs attention and experts.
REPORTED: tuple[int, int, tuple[int, ...], int] = (4096, 8, (4096,), 2)
CASES = {
    "one variant": Case("hf-eager", "bf16", 8, 64, (8,), 1, dominated=False),
    "fp32, which loads other weights than the file's": Case("hf-eager", "fp32", 16, 256, (16,), 6),
    "long sequences, all scores held": Case("hf-eager", "fp32", 2, 1024, (2,), 6),
    "fused attention, grouped experts": Case("hf-default", "fp32", 32, 256, (32,), 6),
    "two micro-batches": Case("hf-eager", "fp32", 64, 128, (64, 16), 6),
    "many waves": Case("hf-eager", "bf16", 32, 64, (4,), 6, dominated=False),
    "decode": Case("hf-eager", "fp32", 32, 192, (32,), 2, schedule="decode"),
    "flat": Case("hf-default", "fp32", 16, 96, (16,), 2, dominated=False, schedule="flat"),
    "weights that change, the cache computed anew": Case("hf-eager", "fp32", 32, 96, (32,), 2, schedule="updates"),
    "fp64": Case("oracle", "fp32", 16, 256, (16,), 4),
    "log-probabilities": Case("hf-eager", "bf16", *REPORTED, {"form": "log_softmax", "temperature": 0.7}),
    "log-probabilities, an order written out": Case(
        "hf-eager", "bf16", *REPORTED, {"form": "minus_logsumexp", "order": "fold_hi", "block": 200}
    ),
    "log-probabilities over ranks": Case(
        "hf-eager", "bf16", *REPORTED, {"form": "shifted", "tensor": 3, "inputs": "fp64", "ranks": "reverse"}
    ),
    "logits over a temperature": Case("hf-eager", "bf16", *REPORTED, {"temperature": 0.7}),
}


@pytest.fixture(scope="module")
def measurements(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, int]]:
    """Of what is of a known size, then of each case, the bytes expected and the bytes taken."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs the kernel's maximum of a process: Linux with /proc/self/clear_refs")
    # Layers that differ, and the head behind them.
    folder = make_random(fields_of("qwen3_moe", 2), tmp_path_factory.mktemp("two_layers"))
    cases = [(str(folder), *(value for key, value in vars(c).items() if key != "dominated")) for c in CASES.values()]
    command = [sys.executable, "-c", MEASURE, str(Path(__file__).parents[2]), json.dumps([*KNOWN, *cases])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **MALLOC})
    assert done.returncode == 0, done.stderr
    numbers = iter(map(int, done.stdout.split()))
    return list(zip(numbers, numbers, strict=True))


@pytest.fixture(scope="module")
def measured(measurements: list[tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Of each case the bytes estimated and the bytes taken."""
    return dict(zip(CASES, measurements[len(KNOWN) :], strict=True))


def test_what_is_there_for_a_moment_is_measured(measurements: list[tuple[int, int]]) -> None:
    for (expected, measured_bytes), size in zip(measurements, KNOWN, strict=False):
        assert expected == size
        assert abs(measured_bytes - size) < 2_000_000


@pytest.mark.parametrize("name", CASES)
def test_the_estimate_bounds_the_peak_of_a_pass(measured: dict[str, tuple[int, int]], name: str) -> None:
    estimated, measured_bytes = measured[name]
    assert measured_bytes <= estimated
    if CASES[name].dominated:
        assert estimated <= 3 * measured_bytes


def test_each_version_of_the_weights_is_there_beside_the_others(qwen3_moe: Path) -> None:
    model = open_model(qwen3_moe, device="cpu")
    sizes = []
    for versions in range(3):
        steps = Schedule(
            steps=tuple(on_versions([rectangle(0, 2, t, t + 1) for t in range(4)], [[1, 2][:versions]] * 2))
        )
        (walker,) = many(model, 1, versions=versions)
        sizes.append(estimate([replace(walker, schedule=steps)], model.weights, 2, 4))
    assert {size.at for size in sizes} == {sizes[0].at}
    assert sizes[2].weights - sizes[1].weights == sizes[1].weights - sizes[0].weights > 0


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].log_probs])
def test_log_probabilities_are_the_peak_of_these_cases(qwen3_moe: Path, name: str) -> None:
    case, model = CASES[name], open_model(qwen3_moe, device="cpu")
    more, none = (
        estimate(
            many(model, case.variants, micro_batches=case.micro_batches, log_probs=log_probs),
            model.weights,
            case.sequences,
            case.length,
        )
        for log_probs in (case.log_probs, None)
    )
    assert more.at == "after"
    assert more.values > 1.5 * none.values


@pytest.fixture(scope="module", params=list(SMALL))
def model(request: pytest.FixtureRequest) -> Model:
    return open_model(request.getfixturevalue(request.param), device="cpu")


class Shapes:
    """What a token really has of every value."""

    def __init__(self) -> None:
        self.axes: dict[str, tuple[int, ...]] = {}

    def see(self, view: NodeView) -> None:
        for port, value in enumerate(view.node.values):
            by_token = view.tensor("0", port).movedim(view.node.op.tokens.axis, 1)
            assert by_token.shape[:2] == (3, 5)
            self.axes[value] = tuple(by_token.shape[2:])


def test_what_a_token_has_of_every_value_is_known(model: Model) -> None:
    """One head is an axis, as several are; slots of experts are one beside their widths."""
    observer = Shapes()
    run(many(model, 1), model.weights, torch.zeros(3, 5, dtype=torch.int64), [observer])
    for value, axes in observer.axes.items():
        shape = token_shapes(model.graph)[value]
        assert shape.numbers == math.prod(axes), value
        assert shape.heads is None or shape.axes == axes, value
        uncut = value.endswith((".k", ".v")) or model.graph.makers[value].op.role.slot_order
        assert shape.heads is not None or len(axes) == 1 or uncut, value


def test_values_that_cannot_differ_are_counted_once(qwen3_moe: Path) -> None:
    model = open_model(qwen3_moe, device="cpu")
    walker, *_ = many(model, 1)
    alike = [replace(walker, name=str(i)) for i in range(9)]
    assert estimate(alike, model.weights, 8, 64) == estimate([walker], model.weights, 8, 64)
    different = many(model, 9)
    assert estimate(different, model.weights, 8, 64).values > estimate([walker], model.weights, 8, 64).values


def test_streamed_weights_are_two_segments_and_resident_ones_all(qwen3_moe: Path) -> None:
    streamed = open_model(qwen3_moe, device="cpu")
    resident = open_model(qwen3_moe, device="cpu", residency="resident")
    layer = 16 * 3 * 40 * 64 * 2
    assert estimate(many(streamed, 1), streamed.weights, 1, 4).weights == 2 * layer
    assert estimate(many(resident, 1), resident.weights, 1, 4).weights == 3 * layer


def test_what_does_not_fit_is_refused_and_the_advice_fits(qwen3_moe: Path) -> None:
    model = open_model(qwen3_moe, device="cpu")
    walkers = many(model, 9, dtype="fp32", micro_batches=(64,))
    whole = require(walkers, model.weights, 64, 256, limit=math.inf).total
    limit = 0.95 * whole
    with pytest.raises(MoeparityError) as caught:
        require(walkers, model.weights, 64, 256, limit=limit)
    message = str(caught.value)
    assert f"needs about {shown_size(whole)} of memory" in message
    assert f"{shown_size(limit)} are allowed by --memory-limit" in message
    patterns = [r"a micro-batch of (\d+)", r"with (\d+) of the 64 sequences", r"with (\d+) instead of 7 trials"]
    size, count, trials = (int(match[1]) for match in (re.search(pattern, message) for pattern in patterns) if match)
    assert estimate([replace(w, schedule=MicroBatches(size)) for w in walkers], model.weights, 64, 256).total <= limit
    assert (
        estimate([replace(w, schedule=MicroBatches(2 * size)) for w in walkers], model.weights, 64, 256).total > limit
    )
    assert (
        estimate(walkers, model.weights, count, 256).total
        <= limit
        < estimate(walkers, model.weights, count + 1, 256).total
    )
    assert 0 < trials < 7
    fewer = [*walkers[: 2 + trials], walkers[-1]]
    assert estimate(fewer, model.weights, 64, 256).total <= limit


def test_where_nothing_fits_the_message_says_so(qwen3_moe: Path) -> None:
    model = open_model(qwen3_moe, device="cpu")
    with pytest.raises(MoeparityError, match="Nothing smaller fits either: use a machine with more memory"):
        require(many(model, 1), model.weights, 2, 8, limit=1000)


def test_what_an_observer_keeps_is_counted(qwen3_moe: Path) -> None:
    model = open_model(qwen3_moe, device="cpu")
    walkers = many(model, 1, micro_batches=(1,))
    nothing, logits = (estimate(walkers, model.weights, 64, 64, saved=saved) for saved in (None, ()))
    more = estimate(walkers, model.weights, 64, 64, saved=["layers[0].moe.combine"])
    routes = 3 * 4 * (8 + 2)
    assert logits.total - nothing.total == 2 * 64 * 64 * (512 * 2 + routes)
    assert more.total - logits.total == 2 * 64 * 64 * 64 * 2


@pytest.mark.parametrize(("size", "shown"), [(12, "12 bytes"), (1e3, "1 kB"), (1.6e8, "160 MB"), (1.256e9, "1.26 GB")])
def test_sizes_are_shown_for_people(size: float, shown: str) -> None:
    assert shown_size(size) == shown
