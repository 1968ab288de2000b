"""Addresses and selectors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeparity.errors import GraphError, Where
from moeparity.plan.address import file_key, select, split

HERE = Where(Path("here"))
LAYERS = 12
NAMES = ["embed", *(f"layers[{i}].{node}" for i in range(LAYERS) for node in ("moe.gate", "moe.norm")), "norm"]


def layers_of(selector: str) -> list[int]:
    return [int(name.split("[")[1].split("]")[0]) for name in select(selector, NAMES, LAYERS, HERE)]


@pytest.mark.parametrize(
    ("index", "layers"),
    [
        ("*", list(range(12))),
        ("3", [3]),
        ("-1", [11]),
        ("-12", [0]),
        ("3:6", [3, 4, 5]),
        ("10:", [10, 11]),
        (":2", [0, 1]),
        (":", list(range(12))),
        ("-2:", [10, 11]),
        (":-10", [0, 1]),
        ("9:99", [9, 10, 11]),
        ("0,2:4,-1", [0, 2, 3, 11]),
        ("4, 1", [1, 4]),
        ("1,1", [1]),
    ],
)
def test_layer_indices(index: str, layers: list[int]) -> None:
    assert layers_of(f"layers[{index}].moe.gate") == layers


def test_one_is_not_eleven() -> None:
    assert layers_of("layers[1].moe.gate") == [1]
    assert layers_of("layers.1.moe.gate") == [1]


def test_stars() -> None:
    assert select("*", NAMES, LAYERS, HERE) == ["embed", "norm"]
    assert select("**", NAMES, LAYERS, HERE) == NAMES
    assert select("layers[0].moe.*", NAMES, LAYERS, HERE) == ["layers[0].moe.gate", "layers[0].moe.norm"]
    assert len(select("**.norm", NAMES, LAYERS, HERE)) == LAYERS
    assert len(select("**norm", NAMES, LAYERS, HERE)) == LAYERS + 1
    assert select("*bed", NAMES, LAYERS, HERE) == ["embed"]


def test_a_star_does_not_cross_a_dot() -> None:
    with pytest.raises(GraphError, match="matches no node"):
        select("layers[0].*te", NAMES, LAYERS, HERE)
    assert select("layers[0].**te", NAMES, LAYERS, HERE) == ["layers[0].moe.gate"]


def test_a_dot_stands_for_itself() -> None:
    with pytest.raises(GraphError, match="matches no node"):
        select("layers[0]xmoe.gate", NAMES, LAYERS, HERE)


@pytest.mark.parametrize("index", ["12", "-13", "5:3", "20:"])
def test_layers_that_are_not_there(index: str) -> None:
    with pytest.raises(GraphError, match="selects no layer; the model has layers 0 to 11"):
        layers_of(f"layers[{index}].moe.gate")


@pytest.mark.parametrize("index", ["", "a", "1:2:3", "-", "-:2", "1.0", "9" * 5000])
def test_what_is_no_index(index: str) -> None:
    with pytest.raises(GraphError, match="is no index"):
        layers_of(f"layers[{index}].moe.gate")


def test_the_nearest_name_keeps_the_index_given() -> None:
    with pytest.raises(GraphError, match=r"Did you mean 'layers\[3:\]\.moe\.gate'\?"):
        select("layers[3:].moe.gaet", NAMES, LAYERS, HERE)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("lm_head:output", ("lm_head", "output", None)),
        ("layers[3:61].moe.gate:output", ("layers[3:61].moe.gate", "output", None)),
        ("**:output", ("**", "output", None)),
        ("layers[:].moe.gate:renormalize_eps", ("layers[:].moe.gate", "renormalize_eps", None)),
        ("lm_head:output@decode", ("lm_head", "output", ("decode",))),
        ("**.norm:output->layers[*].q@verify, prefill", ("**.norm", "output->layers[*].q", ("prefill", "verify"))),
    ],
)
def test_split(address: str, parts: tuple[str, str, tuple[str, ...] | None]) -> None:
    assert split(address, HERE) == parts


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("lm_head:output@decoding", r"names the phase 'decoding'; expected one of .*verify\. Did you mean 'decode'\?"),
        ("lm_head:output@", "names the phase ''; expected one of forward, prefill, chunk, decode, verify"),
        ("lm_head:output@decode,,verify", "names the phase ''"),
        ("lm_head@decode", "names no attribute"),
    ],
)
def test_a_phase_that_is_none_is_refused(address: str, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        split(address, HERE)


@pytest.mark.parametrize("address", ["lm_head", "lm_head:", ":output", "a:b:c", "layers[3:61].moe", "a:B", ""])
def test_split_needs_a_node_and_an_attribute(address: str) -> None:
    with pytest.raises(GraphError, match="names no attribute"):
        split(address, HERE)


def test_file_key() -> None:
    assert file_key("layers[10].moe.router.ids") == "layers.10.moe.router.ids"
    assert file_key("lm_head") == "lm_head"


@given(st.text(alphabet="layers[]0123456789.*:,-moegt\n", max_size=30))
def test_no_selector_raises_anything_but_graph_error(selector: str) -> None:
    message = "here: nothing"
    try:
        assert set(select(selector, NAMES, LAYERS, HERE)) <= set(NAMES)
    except GraphError as error:
        message = str(error)
    assert message.startswith("here: ")


@given(st.sampled_from(NAMES))
def test_a_name_selects_itself_in_both_spellings(name: str) -> None:
    assert select(name, NAMES, LAYERS, HERE) == [name]
    assert select(file_key(name), NAMES, LAYERS, HERE) == [name]
