"""A good input changed at random either is still good or gives a user's error; never another exception."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moeparity.bisection.outline import outline_recipe
from moeparity.documents.checked import shipped
from moeparity.engine.forward import forward
from moeparity.errors import MoeparityError
from moeparity.inputs.tokens import read_tokens
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from tests.errors.base import BAD, BASE, CONFIG, INDEX, TOKENS, WEIGHTS, shard

VALUES = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2, 3, 5, 7, 16, 1000, 2**62, 1e-6, 0.5, -2.5, 1e300),
        *("", "silu", "yarn", "default", "4", [], {}, [1], ["a"]),
        *({"rope_type": "yarn"}, {"type": "linear", "factor": 2}),
    ]
)
RECIPE = (BASE / "recipe.yaml").read_text("utf-8").replace("checkpoint: .", f"checkpoint: {BASE}")
GRAPH = (BAD / "graph-unknown-value.yaml").read_text("utf-8").replace("nrom", "norm")
PROFILE = (BAD / "profile-unknown-op.yaml").read_text("utf-8").replace("combin\n", "combine\n")
DEEPSEEK = json.loads((BAD / "checkpoint-one-expert-per-group" / "config.json").read_text("utf-8")) | {"n_group": 2}

quick = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@st.composite
def edited(draw: st.DrawFn, good: bytes) -> bytes:
    """A few bytes dropped, repeated, moved or replaced."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.sampled_from([1, 1, 1, 2, 8, 40]))
        new = draw(
            st.one_of(st.just(b""), st.binary(max_size=3), st.sampled_from([b"[", b"}", b"*", b": ", b"-", b"9"]))
        )
        data[at : at + draw(st.integers(0, length))] = new
    return bytes(data)


def holds(attempt: Callable[[], object]) -> bool:
    """Whether it works, or is refused in one line; any other exception fails the test."""
    try:
        attempt()
    except MoeparityError as error:
        return bool(str(error)) and "\n" not in str(error)
    return True


@quick
@given(raw=edited(RECIPE.encode()))
def test_recipes(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "recipe.yaml").write_bytes(raw)
    assert holds(lambda: outline_recipe(tmp_path / "recipe.yaml"))


@quick
@given(raw=edited(PROFILE.encode()))
def test_profiles(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "mine.yaml").write_bytes(raw)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("hf-default", "./mine.yaml"), "utf-8")
    assert holds(lambda: outline_recipe(recipe))


@quick
@given(raw=edited(GRAPH.encode()))
def test_graphs(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "graph.yaml").write_bytes(raw)
    assert holds(lambda: expand(Config(BASE / "config.json"), tmp_path / "graph.yaml"))


@pytest.mark.parametrize("path", sorted(shipped("models").values()), ids=lambda path: path.stem)
@settings(quick, max_examples=6)
@given(data=st.data())
def test_shipped_graphs(tmp_path: Path, path: Path, data: st.DataObject) -> None:
    (tmp_path / "graph.yaml").write_bytes(data.draw(edited(path.read_bytes())))
    assert holds(lambda: expand(Config(BASE / "config.json"), tmp_path / "graph.yaml"))


@quick
@given(raw=edited(json.dumps(CONFIG, indent=1).encode()))
def test_bytes_of_config_json(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "config.json").write_bytes(raw)
    assert holds(lambda: expand(Config(tmp_path / "config.json")))


@settings(quick, max_examples=50)
@given(data=st.data(), good=st.sampled_from([CONFIG, DEEPSEEK]))
def test_fields_of_config_json(tmp_path: Path, data: st.DataObject, good: dict[str, Any]) -> None:
    more = ["rope_parameters", "rope_scaling", "mlp_only_layers", "decoder_sparse_step", "dtype", "q_lora_rank"]
    changes = data.draw(st.dictionaries(st.sampled_from([*good, *more]), VALUES, min_size=1, max_size=2))
    dropped = data.draw(st.sampled_from([None, *good]))
    fields = {key: value for key, value in {**good, **changes}.items() if key != dropped}
    (tmp_path / "config.json").write_text(json.dumps(fields), "utf-8")
    assert holds(lambda: expand(Config(tmp_path / "config.json")))


@settings(quick, max_examples=20)
@given(data=st.data())
def test_a_changed_config_over_whole_weights_runs_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "run"
    if not folder.exists():
        shutil.copytree(BASE, folder)
    changes = data.draw(st.dictionaries(st.sampled_from([*CONFIG, "rope_parameters"]), VALUES, max_size=2))
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}), "utf-8")
    ids = read_tokens(BASE / TOKENS).input_ids
    assert holds(lambda: forward(folder, ids, device="cpu"))


@settings(quick, max_examples=20)
@given(data=st.data(), file=st.sampled_from([WEIGHTS, INDEX]))
def test_weights(tmp_path: Path, data: st.DataObject, file: str) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(BASE, folder)
    if file == INDEX:
        shard(folder)
    (folder / file).write_bytes(data.draw(edited((folder / file).read_bytes())))
    ids = read_tokens(BASE / TOKENS).input_ids
    assert holds(lambda: forward(folder, ids, device="cpu"))


@quick
@given(raw=edited((BASE / TOKENS).read_bytes()))
def test_tokens(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / TOKENS).write_bytes(raw)
    assert holds(lambda: read_tokens(tmp_path / TOKENS))
