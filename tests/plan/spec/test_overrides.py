"""`--over`: what a key may be, how its values are cut and read, and what becomes of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeparity.documents import yaml
from moeparity.errors import SpecError
from moeparity.plan.spec import reader, recipe_schema
from moeparity.plan.spec.overrides import Override, addresses, axes, fields

RECIPE = """\
kind: recipe
checkpoint: .
tokens: {file: tokens.safetensors, sampled_from: candidate}
reference: {profile: hf-eager, micro_batch: 2}
candidate:
  profile: hf-default
  placement: {expert: 4}
  set:
    "layers[*].moe.gate:output": fp32
gate: {metric: k3, below: 1e-4}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> recipe_schema.RecipeFile:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return reader.read_recipe(path)


def single_axis(text: str) -> list[Override]:
    (axis,) = axes([text])
    return list(axis)


def test_every_field_of_a_side_that_holds_one_value_can_be_swept() -> None:
    scalars = {"profile", "micro_batch", "dtype", "placement.tensor", "placement.expert", "placement.sequence"}
    assert scalars <= set(fields())
    assert not {"set", "impl", "placement"} & set(fields())


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("placement.tensor=1,2,4", [1, 2, 4]),
        ("placement.tensor= 1 , 0x10", [1, 16]),
        ("placement.sequence=true,false", [True, False]),
        ("dtype=null,bf16", [None, "bf16"]),
        ("profile=no,./a,b.yaml", ["no", "./a", "b.yaml"]),
        ("layers[*].attention.norm:eps=1e-6,1", [1e-6, 1]),
        ("layers[*].moe.combine:order=rotate(1, 1),native", ["rotate(1, 1)", "native"]),
        (
            "layers[*].moe.combine:order=threads(4, vector=2) | fold_hi,tree((0+2)+(1+3))",
            ["threads(4, vector=2) | fold_hi", "tree((0+2)+(1+3))"],
        ),
        ("layers[*].moe.combine:order=tree((0+1), (2+3)),native", ["tree((0+1), (2+3))", "native"]),
        ("layers[*].moe.combine:order=unclosed(1, 2,3", ["unclosed(1, 2,3"]),
        ("layers[*].moe.combine:order='native'", ["native"]),
    ],
)
def test_values_are_cut_at_commas_outside_parentheses_and_read_as_yaml(text: str, values: list[Any]) -> None:
    scalars = [override.value for override in single_axis(text)]
    assert scalars == values
    assert [type(value) for value in scalars] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("name", "sides", "key", "is_address"),
    [
        ("placement.tensor", ("candidate",), "placement.tensor", False),
        ("candidate.dtype", ("candidate",), "dtype", False),
        ("reference.dtype", ("reference",), "dtype", False),
        ("both.layers[*].moe.gate:output", ("reference", "candidate"), "layers[*].moe.gate:output", True),
        ("layers[0:2,3].moe.gate:output", ("candidate",), "layers[0:2,3].moe.gate:output", True),
        ("**.add:output->norm", ("candidate",), "**.add:output->norm", True),
    ],
)
def test_a_key_names_a_field_or_an_address_of_some_sides(
    name: str, sides: tuple[str, ...], key: str, is_address: bool
) -> None:
    (override,) = single_axis(f"{name}={1 if key == 'placement.tensor' else 'fp32'}")
    assert (override.name, override.sides, override.key, override.is_address) == (name, sides, key, is_address)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["micro_batch"], "'micro_batch' has no value; expected KEY=VALUE,VALUE"),
        (["=1"], "'' is nothing that can be swept"),
        (["set=1"], "'set' is nothing that can be swept"),
        (["impl=a"], "'impl' is nothing that can be swept"),
        (["placement=2"], "Did you mean 'placement.tensor'?"),
        (["gate.below=1"], "'gate.below' is nothing that can be swept"),
        (["layers[0:2].moe.gate=fp32"], "'layers[0:2].moe.gate' is nothing that can be swept"),
        (["micro_bach=1"], "Did you mean 'micro_batch'?"),
        (["micro_batch=0"], "micro_batch is 0; expected at least 1."),
        (["micro_batch=1.5"], "micro_batch is 1.5; expected a whole number."),
        (["micro_batch="], "--over micro_batch: '' is not one value"),
        (["micro_batch=[1]"], "--over micro_batch: '[1]' is not one value"),
        (["dtype=a: b"], "--over dtype: 'a: b' is not one value"),
        (["dtype=*a"], "--over dtype: '*a' is not one value"),
        (["dtype=!!python/object 1"], "tag !!python/object is not read"),
        (["dtype=bfloat16"], "expected 'bf16', 'fp16', 'fp32' or 'fp64'. Did you mean 'bf16'?"),
        (["placement.sequence=yes"], "placement.sequence is 'yes'; expected true or false."),
        (["profile=null"], "profile is null; expected a word."),
        (["a:b=null"], "set.a:b is null; expected a word or a number."),
        (["dtype=bf16", "dtype=fp32"], "'dtype' of the candidate is given twice, by 'dtype' and 'dtype'."),
        (["both.a:b=1", "reference.a:b=2"], "'a:b' of the reference is given twice, by 'both.a:b' and"),
    ],
)
def test_what_no_recipe_may_hold_is_refused(options: list[str], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        axes(options)
    assert says in str(caught.value)
    assert str(caught.value).startswith("--over")


def test_a_field_takes_the_place_of_the_recipes_own_and_everything_else_stays(recipe: recipe_schema.RecipeFile) -> None:
    (override,) = single_axis("placement.tensor=2")
    copy = override.apply(recipe)
    assert (copy.candidate.placement.tensor, copy.candidate.placement.expert) == (2, 4)
    original = copy.candidate.model_copy(update={"placement": recipe.candidate.placement})
    assert copy.model_copy(update={"candidate": original}) == recipe


def test_lines_stay_where_they_were(recipe: recipe_schema.RecipeFile) -> None:
    (override,) = single_axis("both.dtype=fp32")
    copy = override.apply(recipe)
    assert (copy.reference.dtype, copy.candidate.dtype) == ("fp32", "fp32")
    assert (copy.reference.line, copy.candidate.line) == (recipe.reference.line, recipe.candidate.line) == (4, 6)
    assert copy.candidate.line_of("placement") == 7
    settings = copy.candidate.set
    assert isinstance(settings, yaml.Mapping)
    assert settings.key_lines == {"layers[*].moe.gate:output": 9}
    (nested,) = single_axis("placement.tensor=2")
    assert nested.apply(recipe).candidate.placement.line == recipe.candidate.placement.line == 7


def test_null_takes_a_value_away(recipe: recipe_schema.RecipeFile) -> None:
    (override,) = single_axis("reference.micro_batch=null")
    assert recipe.reference.micro_batch == 2
    assert override.apply(recipe).reference.micro_batch is None


def test_addresses_are_kept_apart_by_side(recipe: recipe_schema.RecipeFile) -> None:
    overrides = [axis[0] for axis in axes(["a:b=1", "reference.c:d=x", "both.e:f=2.5", "dtype=fp32"])]
    assert addresses(overrides, "candidate") == {"a:b": 1, "e:f": 2.5}
    assert addresses(overrides, "reference") == {"c:d": "x", "e:f": 2.5}
    assert overrides[0].apply(recipe) is recipe
