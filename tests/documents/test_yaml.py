"""The strict YAML loader: 1.2 scalars, lines, and refusals; whatever the bytes, nothing but SpecError comes out."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml as pyyaml
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.documents import yaml
from moeparity.errors import SpecError


def load(path: Path, text: str) -> yaml.Mapping:
    path.write_text(text, "utf-8")
    return yaml.load(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.yaml"


@pytest.mark.parametrize(
    ("text", "scalar"),
    [
        ("1e-6", 1e-6),
        ("1E+3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0.0", -0.0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("12", 12),
        ("-7", -7),
        ("+7", 7),
        ("010", 10),
        ("0o17", 15),
        ("0x10", 16),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("2026-11-20", "2026-11-20"),
        ("=", "="),
        ("fp32", "fp32"),
        ("'1e-6'", "1e-6"),
        ('"true"', "true"),
        ("'~'", "~"),
        ("1e-6x", "1e-6x"),
        ("e5", "e5"),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_scalars_are_those_of_yaml_1_2(file: Path, text: str, scalar: Any) -> None:
    value = load(file, f"key: {text}\n")["key"]
    assert value == scalar
    assert type(value) is type(scalar)


def test_nan(file: Path) -> None:
    assert math.isnan(load(file, "key: .nan\n")["key"])


def test_block_scalars_are_text(file: Path) -> None:
    assert load(file, "key: |\n  12\n")["key"] == "12\n"


def test_every_mapping_knows_its_line_and_those_of_its_keys(file: Path) -> None:
    data = load(file, "# one\na: 1\nb:\n  c: {d: 2}\n  e:\n    - f: 3\n    - {g: 4,\n       h: 5}\n")
    assert (data.line, data.key_lines) == (2, {"a": 2, "b": 3})
    assert (data["b"].line, data["b"].key_lines) == (4, {"c": 4, "e": 5})
    assert data["b"]["c"].key_lines == {"d": 4}
    assert [item.line for item in data["b"]["e"]] == [6, 7]
    assert data["b"]["e"][1].key_lines == {"g": 7, "h": 8}


def test_keys_are_always_words(file: Path) -> None:
    assert list(load(file, "1: a\ntrue: b\n1e-6: c\n'': d\n")) == ["1", "true", "1e-6", ""]


def test_aliases_are_expanded(file: Path) -> None:
    assert load(file, "a: &x {b: 1}\nc: [*x, *x]\n")["c"] == [{"b": 1}, {"b": 1}]


def test_aliases_are_bounded_by_what_they_expand_to(file: Path) -> None:
    def text(times: int) -> str:
        return f"a: &a [{', '.join('x' * 100)}]\nb: [{', '.join(['*a'] * times)}]\n"

    assert len(load(file, text(490))["b"]) == 490
    with pytest.raises(SpecError, match="more than 50000 values"):
        load(file, text(500))


def test_nesting_is_bounded(file: Path) -> None:
    assert load(file, "a: " + "[" * 40 + "]" * 40)
    with pytest.raises(SpecError, match="nested deeper than 50"):
        load(file, "a: " + "[" * 60 + "]" * 60)


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "{a: 1, a: 1}", 'a: 1\n"a": 2\n'])
def test_a_repeated_key_is_refused(file: Path, text: str) -> None:
    with pytest.raises(SpecError, match="'a' is given twice"):
        load(file, text)


def test_the_same_key_in_two_mappings_is_none(file: Path) -> None:
    assert load(file, "a: {x: 1}\nb: {x: 1}\n") == {"a": {"x": 1}, "b": {"x": 1}}


def test_an_unquoted_selector_is_fine_where_yaml_reads_it_as_a_word(file: Path) -> None:
    assert load(file, "layers[*].moe.gate:output: fp32\n") == {"layers[*].moe.gate:output": "fp32"}


def test_a_byte_order_mark_is_passed_over(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfkey: 1\n")
    assert yaml.load(file) == {"key": 1}


SYNTAX = st.sampled_from(
    [
        *("&a", "*a", "[", "]", "{", "}", ": ", "- ", "\n", "  ", "\t", "'", '"', "\\U", "\\x0", "|", ">", "%YAML 1"),
        *("---", "...", "!!int ", "!x ", "<<", "?", "#", ",", "1e", "0x", "99999999999999999999", "~", "\x00", "k"),
    ]
)


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=60), st.lists(SYNTAX, max_size=25).map(lambda parts: "".join(parts).encode())))
def test_no_bytes_raise_anything_but_spec_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(raw)
    message = "nothing"
    try:
        yaml.load(path)
    except SpecError as error:
        message = str(error)
    assert message
    assert "\n" not in message


ROOT = Path(__file__).parents[2]
SHIPPED = sorted(ROOT.glob("graphs/*/*.yaml"))
PIECES = (
    *"{}[],:-?!&*#|>'\"%@` \t\n~<=\x85\u2028\ufeff",
    "- ",
    ": ",
    "\n  ",
    "---\n",
    "!!str ",
    "&a ",
    "*a",
    "|\n ",
    '"\\x41"',
)


def mutated(texts: list[str], count: int) -> Iterator[str]:
    draw = random.Random(5)  # noqa: S311
    for _ in range(count):
        text = draw.choice(texts)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice(("", *PIECES)) + text[at + draw.randrange(3) :]
        yield text


def outcome(text: str) -> object:
    """The data with every line, or the message. Python takes a NaN for unequal to itself, and its text for equal."""
    try:
        return repr(lined(yaml.parsed.__wrapped__(Path("x.yaml"), text)))
    except SpecError as error:
        return str(error)


def lined(data: Any) -> Any:
    if isinstance(data, yaml.Mapping):
        return data.line, data.key_lines, {key: lined(value) for key, value in data.items()}
    return [lined(item) for item in data] if isinstance(data, list) else data


@pytest.mark.skipif(not pyyaml.__with_libyaml__, reason="needs PyYAML with libyaml, as its wheels have it")
def test_what_libyaml_reads_is_what_pyyaml_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that is shipped, which nothing keeps from libyaml, and of files with mistakes: data, lines, messages."""
    shipped = [path.read_text("utf-8") for path in SHIPPED]
    assert not any(yaml._READ_OTHERWISE.search(text) for text in shipped)
    recipes = [path.read_text("utf-8") for path in sorted(ROOT.glob("recipes/*.yaml"))]
    texts = [*shipped[::4], *mutated(recipes, 200)]
    by_libyaml = [outcome(text) for text in texts]
    monkeypatch.setattr(yaml, "_READ_OTHERWISE", re.compile(""))
    assert [outcome(text) for text in texts] == by_libyaml
