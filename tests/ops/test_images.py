"""Images in a model's stream, and its positions of three axes, against loops over numbers."""

from __future__ import annotations

import math

import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.ops.kernels.images import add_images, place_images
from moeparity.ops.kernels.rope import rotary
from moeparity.ops.rope import ROTARY

B, T, HIDDEN, PARTS = 2, 5, 7, 3
MASK = torch.tensor([[False, True, True, False, False], [True, False, False, False, True]])
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, IMAGES = drawn(B, T, HIDDEN, seed=1).bfloat16(), drawn(B, T, PARTS * HIDDEN, seed=2)


def single(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("output", DTYPES)
@pytest.mark.parametrize("part", range(PARTS))
def test_an_image_stands_in_place_of_its_token(part: int, output: str) -> None:
    out = place_images(X, MASK, IMAGES, w={}, p={"part": part}, at={"output": DTYPES[output]})
    assert out.dtype == DTYPES[output]
    for b, t, h in torch.cartesian_prod(torch.arange(B), torch.arange(T), torch.arange(HIDDEN)).tolist():
        value = float(IMAGES[b, t, part * HIDDEN + h]) if bool(MASK[b, t]) else float(X[b, t, h])
        assert float(out[b, t, h]) == single(value, DTYPES[output])


@pytest.mark.parametrize("image", DTYPES)
@pytest.mark.parametrize("output", ["bf16", "fp32"])
def test_an_image_is_added_to_its_token(image: str, output: str) -> None:
    out = add_images(X, MASK, IMAGES, w={}, p={"part": 2}, at={"image": DTYPES[image], "output": DTYPES[output]})
    assert out.dtype == DTYPES[output]
    for b, t, h in torch.cartesian_prod(torch.arange(B), torch.arange(T), torch.arange(HIDDEN)).tolist():
        value = float(X[b, t, h])
        if bool(MASK[b, t]):
            # Of two numbers of 24 bits at most fp64 holds the sum, but for the last bit of some in fp64 itself.
            value += single(float(IMAGES[b, t, 2 * HIDDEN + h]), DTYPES[image])
            value = value if image == "fp64" else single(value, torch.float32)
        assert float(out[b, t, h]) == single(value, DTYPES[output])


def test_text_keeps_its_bits() -> None:
    zeros = torch.full((1, 2, 3), -0.0)
    mask, images = torch.tensor([[False, True]]), torch.zeros(1, 2, 3)
    out = add_images(zeros, mask, images, w={}, p={"part": 0}, at={"image": torch.float32, "output": torch.float32})
    assert out.signbit().tolist() == [[[True] * 3, [False] * 3]], "a sum with 0 would turn -0 into +0"


@pytest.mark.parametrize("kernel", [place_images, add_images])
def test_without_images_x_goes_through(kernel: object) -> None:
    at = {"image": torch.bfloat16, "output": torch.bfloat16}
    assert callable(kernel)
    assert same_bits(kernel(X, MASK & False, X.new_zeros(B, T, 0), w={}, p={"part": 1}, at=at), X)


def test_pairs_turn_by_their_axis() -> None:
    """Of eight pairs those by time, height and width: 4, 3 and 1."""
    positions = torch.tensor([[[3, 5, 7], [11, 13, 17]]])
    parameters = {"dim": 16, "rope": {"rope_type": "default", "rope_theta": 100.0}, "max_positions": 64}
    cos, sin = rotary(positions, w={}, p={**parameters, "sections": [4, 3, 1]}, at={"output": torch.float64})
    axes = [0, 1, 2, 0, 1, 0, 0, 1]
    for t in range(2):
        for pair, axis in enumerate(axes):
            angle = float(positions[0, t, axis]) * 100.0 ** (-2 * pair / 16)
            for column in (pair, pair + 8):
                assert math.isclose(float(cos[0, t, column]), math.cos(angle), abs_tol=1e-12)
                assert math.isclose(float(sin[0, t, column]), math.sin(angle), abs_tol=1e-12)


def test_equal_positions_are_one() -> None:
    parameters = {"dim": 16, "rope": {"rope_type": "default", "rope_theta": 100.0}, "max_positions": 64}
    positions = torch.arange(7)[None]
    plain = rotary(positions, w={}, p=parameters, at={"output": torch.bfloat16})
    turned = rotary(
        positions[..., None].expand(-1, -1, 3),
        w={},
        p={**parameters, "sections": [3, 3, 2]},
        at={"output": torch.bfloat16},
    )
    assert all(same_bits(*pair) for pair in zip(plain, turned, strict=True))


def test_sections_of_more_pairs_than_there_are_go_up_to_the_last() -> None:
    """As of a config.json without sections, for which transformers assumes those of another width."""
    positions = torch.tensor([[[3, 5, 7]]])
    parameters = {"dim": 16, "rope": {"rope_type": "default", "rope_theta": 100.0}, "max_positions": 64}
    of_each = [
        rotary(positions, w={}, p={**parameters, "sections": s}, at={"output": torch.float32})
        for s in ([11, 11, 10], [2, 3, 3])
    ]
    assert all(same_bits(*pair) for pair in zip(*of_each, strict=True))


@pytest.mark.parametrize("sections", [[4, 4], [9, -1, 0], [4.0, 2, 2]])
def test_sections_that_are_no_pairs_are_refused(sections: list[float]) -> None:
    assert ROTARY.refusals.parameters is not None
    parameters = {"dim": 16, "rope": {"rope_type": "default"}, "sections": sections}
    assert "three whole numbers of at least 0" in str(ROTARY.refusals.parameters(parameters))
