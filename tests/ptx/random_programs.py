"""Random small PTX programs, and what `tests.ptx.scalar` makes of them, one thread after the other.

`python -m tests.ptx.random_programs 5000` runs so many and prints how many numbers were compared.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from dataclasses import dataclass

import numpy as np

from moeparity import ptx
from tests.ptx import scalar
from tests.ptx.templates import POOLS, TEMPLATES, Template

THREADS = 4


@dataclass(frozen=True)
class Branch:
    """A jump over the next `skipped` instructions where a predicate is true, or false."""

    predicate: int
    negated: bool
    skipped: int


@dataclass(frozen=True)
class Instruction:
    """A template with its registers, numbers among them, and a guard: predicate, negated."""

    template: Template
    names: tuple[str | int, ...]
    guard: tuple[int, bool] | None


SPECIAL = {
    4: (0, 0x80000000, 1, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001,
        0x7FFFFFFF, 0xFFFFFFFF, 31, 32, 0x3C003C00, 0x7C00FC00, 0x3F803F80, 0x4F000000, 0xCF000000, 0x4B000001),
    8: (0, 1 << 63, 1, 0x3FF0000000000000, 0x7FF0000000000000, 0xFFF0000000000000, 0x000FFFFFFFFFFFFF, (1 << 64) - 1,
        0x47EFFFFFF0000000, 0x36A0000000000000, 0x41DFFFFFFFC00000, 63, 64),
    2: (0, 0x8000, 1, 0x3C00, 0x7C00, 0xFC00, 0x7BFF, 0x3F80, 0x7F80, 0x7F7F, 0x7FFF, 0x0400, 0xFFFF),
}  # fmt: skip


class Program:
    """One program: its text, its inputs, and what comes out by `scalar`."""

    def __init__(self, seed: int, length: int = 14) -> None:
        self.rng = random.Random(seed)
        lines: list[str] = []
        steps: list[Branch | Instruction] = []
        skip, target = 0, 0
        for at in range(length):
            if skip == 0 and self.rng.random() < 0.12 and at + 3 < length:
                predicate, negated, skip = self.rng.randrange(3), self.rng.random() < 0.5, self.rng.randint(1, 3)
                lines.append(f"@{'!' * negated}%p{predicate} bra $L{at};")
                steps.append(Branch(predicate, negated, skip))
                target = at
            lines.append(self._instruction(steps))
            if skip and (skip := skip - 1) == 0:
                lines.append(f"$L{target}:")
        if skip:
            lines.append(f"$L{target}:")
        self.steps = steps
        self.text = _frame(lines)
        self.inputs = [self._values() for _ in range(THREADS)]

    def _instruction(self, steps: list[Branch | Instruction]) -> str:
        template = self.rng.choice(TEMPLATES)
        names = [self._operand(pool) for pool in (*template.results, *template.sources)]
        while len(template.results) == 2 and names[0] == names[1]:
            names[1] = self._operand(template.results[1])
        guard = (self.rng.randrange(3), self.rng.random() < 0.5) if self.rng.random() < 0.2 else None
        steps.append(Instruction(template, tuple(names), guard))
        shown = [f"%{name}" if not isinstance(name, int) else str(name) for name in names]
        count = len(template.results)
        results = "|".join(shown[:count]) if template.vectors != "d" else "{" + ", ".join(shown[:count]) + "}"
        sources = ", ".join(shown[count:])
        sources = "{" + sources + "}" if template.vectors == "s" else sources
        return (f"@{'!' * guard[1]}%p{guard[0]} " if guard else "") + f"{template.text} {results}, {sources};"

    def _operand(self, pool: str) -> str | int:
        if pool == "imm8":
            return self.rng.randrange(256)
        return f"{pool}{self.rng.randrange(3 if pool == 'p' else POOLS[pool][2])}"

    def _values(self) -> dict[str, int]:
        values = {f"p{at}": 0 for at in range(3)}
        for pool, (_, size, count) in POOLS.items():
            for at in range(count):
                values[f"{pool}{at}"] = self._value(size)
        return values

    def _value(self, size: int) -> int:
        draw = self.rng.random()
        if draw < 0.3:
            return self.rng.choice(SPECIAL[size])
        if draw < 0.6 and size > 2:
            number = self.rng.gauss(0, 1) * 2.0 ** self.rng.choice((0, 0, 3, 30, -30, 100, -120))
            return int.from_bytes(struct.pack("<f" if size == 4 else "<d", number), "little")
        if draw < 0.7:
            return self.rng.randrange(80)
        return self.rng.getrandbits(8 * size)

    def expected(self) -> list[dict[str, int]]:
        """Every register of every thread at the end."""
        return [self._thread(dict(values)) for values in self.inputs]

    def _thread(self, values: dict[str, int]) -> dict[str, int]:
        skip = 0
        for step in self.steps:
            if isinstance(step, Branch):
                skip = step.skipped if values[f"p{step.predicate}"] != step.negated else 0
            elif skip:
                skip -= 1
            elif step.guard is None or values[f"p{step.guard[0]}"] != step.guard[1]:
                count = len(step.template.results)
                operands = [name if isinstance(name, int) else values[name] for name in step.names[count:]]
                result = step.template.evaluate(operands)
                written = result if isinstance(result, tuple) else (result,)
                for name, value in zip(step.names[:count], written, strict=True):
                    values[str(name)] = int(value)
        return values

    def outputs(self, seed: int | None = None) -> list[dict[str, int]]:
        """Every register of every thread at the end, by the interpreter."""
        record = b"".join(
            b"".join(
                values[f"{pool}{at}"].to_bytes(8, "little") for pool, (_, _, n) in POOLS.items() for at in range(n)
            )
            for values in self.inputs
        )
        memory = np.frombuffer(bytearray(record), np.uint64)
        ptx.load(self.text).launch("random", 1, THREADS, [memory], seed=seed)
        table = memory.reshape(THREADS, -1)
        names = [(f"{pool}{at}", size) for pool, (_, size, n) in POOLS.items() for at in range(n)]
        return [
            {name: int(value) & (1 << 8 * size) - 1 for (name, size), value in zip(names, row, strict=True)}
            for row in table
        ]

    def differences(self, seed: int | None = None) -> list[str]:
        """Registers that differ, with the program; a NaN of fp64 is any other."""
        wrong = []
        for thread, (mine, theirs) in enumerate(zip(self.outputs(seed), self.expected(), strict=True)):
            for name, value in mine.items():
                if value != theirs[name] and not (name.startswith("fd") and _nan(value) and _nan(theirs[name])):
                    wrong.append(f"thread {thread} %{name}: {value:#x}, expected {theirs[name]:#x}")
        return [*wrong, self.text] if wrong else []


def _nan(bits: int) -> bool:
    return scalar.decode(bits, "f64")[0] == "nan"


def _frame(lines: list[str]) -> str:
    size = 8 * sum(count for _, _, count in POOLS.values())
    loads, stores, at = [], [], 0
    for pool, (type_, _, count) in POOLS.items():
        for number in range(count):
            loads.append(f"ld.global.{type_} %{pool}{number}, [%base+{at}];")
            stores.append(f"st.global.{type_} [%base+{at}], %{pool}{number};")
            at += 8
    registers = [f".reg .{type_} %{pool}<{count}>;" for pool, (type_, _, count) in POOLS.items()]
    body = [
        *registers, ".reg .pred %p<3>;", ".reg .b64 %base;", ".reg .b32 %thread;",
        "ld.param.u64 %base, [random_param_0];", "mov.u32 %thread, %tid.x;", f"mad.wide.u32 %base, %thread, {size}, %base;",
        *loads, *lines, *stores, "ret;",
    ]  # fmt: skip
    head = ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry random(.param .u64 random_param_0)\n{\n"
    return head + "\n".join(f"\t{line}" for line in body) + "\n}\n"


def main() -> None:
    count, begin = int(sys.argv[1]), time.perf_counter()
    wrong = [program for seed in range(count) if (program := Program(seed).differences())]
    numbers = count * THREADS * sum(n for _, _, n in POOLS.values())
    print(f"{count:,} programs, {numbers:,} numbers, {len(wrong)} programs differ, {time.perf_counter() - begin:.0f} s")
    print("\n".join(line for program in wrong[:3] for line in program))


if __name__ == "__main__":
    main()
