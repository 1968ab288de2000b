"""The gated delta rule in chunks, with every choice of its kernels, against an evaluation number by number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import UNROUNDED
from moeparity.ops.kernels import exponentials
from moeparity.ops.registry import OPS
from moeparity.ops.state import BORDERS
from tests.ops.test_gated_delta import Drawn, drawn

Number = Any
"""A fp32 of numpy, whose every operation is rounded."""
CHUNK, TOKENS = 20, 45
SHAPE = (1, TOKENS, 1, 1, 6, 5)
PLAIN: dict[str, Any] = {
    "form": "chunks", "chunk": CHUNK, "functions": "exact", "order": "sequential", "squares_order": "sequential",
    "decay_sums": "sequential", "softplus": "log", "solve": "rows", "length": "divide", "beta": "fp32",
    "logistic": "exp", "output": "fp32",
}  # fmt: skip
SITES = ("normalized", "system", "inverse", "learnt", "new_values", "state_keys", "read_state", "changes", "queries",
         "pairs", "carried")  # fmt: skip
CASES: list[dict[str, Any]] = [
    {},
    *({site: "bf16"} for site in SITES),
    {"scale": "behind"},
    {"length": "reciprocal"},
    {"softplus": "folded"},
    {"beta_on": "scores"},
    {"beta_on": "decayed"},
    {"solve": "blocks"},
    {"solve": "blocks", "merge": "tf32", "inverse": "fp16"},
    {"decay_on": "result"},
    {"carry_on": "values"},
    {"carry_on": "values", "carried": "bf16", "changes": "bf16"},
    {
        "decay_on": "queries",
        "queries": "bf16",
        "system": "bf16",
        "inverse": "bf16",
        "beta_on": "scores",
        "pairs": "fp16",
    },
]


def as_dtype(x: Number, dtype: str | None) -> Number:
    """Rounded to a dtype, as a fp32."""
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if dtype in (None, UNROUNDED):
        return x
    return np.float32(torch.tensor(float(x), dtype=torch.float32).to(kinds[str(dtype)]).float().item())


def tf32(x: Number) -> Number:
    """To 10 bits of fraction, to nearest, ties away from zero."""
    bits = np.float32(x).view(np.uint32)
    return np.uint32((int(bits) + 0x1000) & 0xFFFFE000).view(np.float32)


def exact(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Number], Number]:
    return lambda x: np.float32(function(torch.tensor(float(x), dtype=torch.float32)).item())


exp, log = exact(exponentials.exp), exact(exponentials.log)


def added(products: Sequence[Number]) -> Number:
    total = products[0]
    for product in products[1:]:
        total = np.float32(total + product)
    return total


def dot(a: Any, b: Any) -> Number:
    return added([np.float32(x * y) for x, y in zip(a, b, strict=True)])


def inverse_by_rows(system: np.ndarray, dtype: str | None) -> np.ndarray:
    size = len(system)
    rows = np.zeros((size, size), np.float32)
    for i in range(size):
        for j in range(i):
            rows[i, j] = as_dtype(-system[i, j], dtype)
    for i in range(1, size):
        entries = rows[i, :i].copy()
        for j in range(i):
            rows[i, j] = as_dtype(entries[j] + dot(entries, rows[:i, j]), dtype)
    return rows + np.eye(size, dtype=np.float32)


def product(a: np.ndarray, b: np.ndarray, merge: str) -> np.ndarray:
    narrow = tf32 if merge == "tf32" else (lambda x: x)
    return np.array(
        [[dot([narrow(x) for x in row], [narrow(x) for x in column]) for column in b.T] for row in a], np.float32
    )


def inverse_by_blocks(system: np.ndarray, merge: str) -> np.ndarray:
    """Of two blocks on the diagonal, 16 rows and the others."""
    total = np.zeros_like(system)
    first, second = system[:16, :16], system[16:, 16:]
    total[:16, :16], total[16:, 16:] = inverse_by_rows(first, None), inverse_by_rows(second, None)
    total[16:, :16] = -product(product(total[16:, 16:], system[16:, :16], merge), total[:16, :16], merge)
    return total


class Evaluation:
    """One head of one sequence."""

    def __init__(self, case: Drawn, at: dict[str, Any]) -> None:
        self.at = at
        q, k, v, a, b = (x[0].float().numpy() for x in case.reads)
        self.width = k.shape[1]
        assert case.state is not None
        self.state = case.state[0, 0].numpy().copy()
        self.q, self.k = [self.by_length(x, is_query=True) for x in q], [self.by_length(x, is_query=False) for x in k]
        self.v = v
        rate = exp(case.w["a_log"].float()[0])
        steps = [self.softplus(np.float32(x[0] + case.w["dt_bias"].float()[0].item())) for x in a]
        self.decay = [np.float32(-rate * step) for step in steps]
        self.beta = [np.float32(1) / np.float32(1 + np.float32(np.exp(-x[0], dtype=np.float32))) for x in b]

    def softplus(self, x: Number) -> Number:
        if self.at["softplus"] == "folded" and x > 0:
            return np.float32(x + log(np.float32(1 + exp(-x))))
        return log(np.float32(1 + exp(x)))

    def by_length(self, x: Sequence[Number], *, is_query: bool) -> list[Number]:
        root = np.sqrt(np.float32(dot(x, x) + np.float32(1e-6)))
        parts = [np.float32(y * (np.float32(1) / root)) for y in x]
        if self.at["length"] == "divide":
            parts = [np.float32(y / root) for y in x]
        if is_query and self.at.get("scale") != "behind":
            parts = [np.float32(y * np.float32(self.width**-0.5)) for y in parts]
        return [as_dtype(y, self.at.get("normalized")) for y in parts]

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        rows = [self.chunk(range(first, min(first + CHUNK, TOKENS))) for first in range(0, TOKENS, CHUNK)]
        return np.concatenate(rows), self.state

    def chunk(self, tokens: range) -> np.ndarray:
        at, n = self.at, len(tokens)
        q, k, v = ([x[t] for t in tokens] for x in (self.q, self.k, self.v))
        beta, decay = [self.beta[t] for t in tokens], np.cumsum([self.decay[t] for t in tokens], dtype=np.float32)
        between = [[exp(np.float32(decay[i] - decay[j])) for j in range(i + 1)] for i in range(n)]
        # Zeros fill the chunk up.
        system = np.zeros((CHUNK, CHUNK), np.float32)
        for i in range(n):
            for j in range(i):
                system[i, j] = as_dtype(self.entry(k[i], k[j], beta[i], between[i][j]), at.get("system"))
        if at["solve"] == "rows":
            inverse = inverse_by_rows(system, at.get("inverse"))
        else:
            inverse = inverse_by_blocks(system, at.get("merge", "fp32"))
        inverse = np.vectorize(lambda x: as_dtype(x, at.get("inverse")))(inverse).astype(np.float32)[:n, :n]
        new = self.solved(inverse, [[np.float32(y * beta[i]) for y in v[i]] for i in range(n)], "new_values")
        learnt = [[np.float32(np.float32(y * beta[i]) * exp(decay[i])) for y in k[i]] for i in range(n)]
        keys = self.solved(inverse, learnt, "state_keys")
        memory = [[as_dtype(x, at.get("read_state")) for x in row] for row in self.state]
        columns = list(zip(*memory, strict=True))
        unrounded = [
            [np.float32(new[i][c] - dot(keys[i], column)) for c, column in enumerate(columns)] for i in range(n)
        ]
        changes = [[as_dtype(x, at.get("changes")) for x in row] for row in unrounded]
        out = [[self.read(q[i], k, changes, between[i], decay[i], column, c) for c, column in enumerate(columns)]
               for i in range(n)]  # fmt: skip
        self.carry(k, unrounded, changes, decay)
        return np.array(out, np.float32)

    def entry(self, row: list[Number], column: list[Number], beta: Number, between: Number) -> Number:
        on = self.at.get("beta_on", "keys")
        if on == "keys":
            return np.float32(dot([np.float32(x * beta) for x in row], column) * between)
        factors = (beta, between) if on == "scores" else (between, beta)
        return np.float32(np.float32(dot(row, column) * factors[0]) * factors[1])

    def solved(self, inverse: np.ndarray, sides: list[list[Number]], site: str) -> list[list[Number]]:
        rounded = np.array([[as_dtype(x, self.at.get("learnt")) for x in row] for row in sides], np.float32)
        return [[as_dtype(dot(row, column), self.at.get(site)) for column in rounded.T] for row in inverse]

    def read(
        self,
        q: list[Number],
        k: list[list[Number]],
        changes: list[list[Number]],
        between: list[Number],
        decay: Number,
        column: Sequence[Number],
        c: int,
    ) -> Number:
        if self.at.get("decay_on") == "result":
            earlier = np.float32(dot(q, column) * exp(decay))
        else:
            earlier = dot([as_dtype(np.float32(x * exp(decay)), self.at.get("queries")) for x in q], column)
        pairs = [as_dtype(np.float32(dot(q, k[j]) * between[j]), self.at.get("pairs")) for j in range(len(between))]
        within = dot(pairs, [changes[j][c] for j in range(len(between))])
        if self.at.get("scale") == "behind":
            factor = np.float32(self.width**-0.5)
            return np.float32(np.float32(earlier * factor) + np.float32(within * factor))
        return np.float32(earlier + within)

    def carry(
        self, k: list[list[Number]], unrounded: list[list[Number]], changes: list[list[Number]], decay: np.ndarray
    ) -> None:
        until, site = [exp(np.float32(decay[-1] - x)) for x in decay], self.at.get("carried")
        if self.at.get("carry_on") == "values":
            values = [[as_dtype(np.float32(x * u), site) for x in row] for row, u in zip(unrounded, until, strict=True)]
            keys = k
        else:
            values = changes
            keys = [[as_dtype(np.float32(x * u), site) for x in row] for row, u in zip(k, until, strict=True)]
        for d in range(self.width):
            for c in range(len(self.state[0])):
                total = dot([row[d] for row in keys], [row[c] for row in values])
                self.state[d, c] = np.float32(np.float32(self.state[d, c] * exp(decay[-1])) + total)


def bound(case: Drawn) -> None:
    """b of which the library's exp is correctly rounded, here and in numpy."""
    candidates = drawn(21, 4096)
    is_exact = exponentials.exp(-candidates) == torch.exp(-candidates)
    is_exact &= torch.from_numpy(np.exp(-candidates.numpy())) == torch.exp(-candidates)
    case.reads[4] = candidates[is_exact][:TOKENS].view(1, TOKENS, 1)


@pytest.mark.parametrize(
    "chosen", CASES, ids=lambda chosen: ", ".join(f"{n}={v}" for n, v in chosen.items()) or "plain"
)
def test_every_choice_in_chunks(chosen: dict[str, Any]) -> None:
    case = Drawn(SHAPE, "fp32", state=True)
    bound(case)
    out, after = case.ours(**{**PLAIN, **chosen}, ends=(TOKENS,))
    expected, state = Evaluation(case, {**PLAIN, **chosen}).run()
    assert same_bits(out[0].contiguous(), torch.from_numpy(expected))
    assert same_bits(after[0, 0].contiguous(), torch.from_numpy(state))


def test_every_choice_is_in_a_case() -> None:
    """But for those of sums and functions, and what tests of other files have."""
    elsewhere = {"form", "chunk", "chunk_state", "inner", "functions", "decay", "contraction"}
    names = {a.name for a in OPS["gated_delta"].attributes} - elsewhere - {a.name for a in BORDERS}
    assert names <= PLAIN.keys() | {name for case in CASES for name in case}


@pytest.mark.parametrize("contraction", ["none", "fma"])
def test_what_a_token_adds_to_the_state(contraction: str) -> None:
    """An fma rounds once, which fp64 and one rounding of it are for these."""
    case = Drawn((1, 1, 1, 1, 6, 5), "fp32", state=True)
    at = {**PLAIN, "form": "tokens", "contraction": contraction}
    _, after = case.ours(**at, ends=(1,))
    evaluated = Evaluation(case, at)
    before = evaluated.state * exp(evaluated.decay[0])
    for c in range(5):
        change = np.float32(np.float32(evaluated.v[0, c] - dot(evaluated.k[0], before[:, c])) * evaluated.beta[0])
        for d in range(6):
            wide = float(before[d, c]) + float(change) * float(evaluated.k[0][d])
            expected = (
                np.float32(wide) if contraction == "fma" else np.float32(before[d, c] + evaluated.k[0][d] * change)
            )
            assert after[0, 0, d, c].item() == expected
