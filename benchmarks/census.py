"""What a census of tensors made of weights costs at its default cadence, as a share of training steps of 200 ms.

    python -m benchmarks.census [--steps 256]

A model of 20 million parameters (80 MB) holds 20 tensors that were made of its weights (40 MB), and every step updates
all weights and makes the tensors anew. Its steps are not waited for: they count as 200 ms each. The first two censuses,
before the first call and behind it, are told by themselves; the shares are those of all censuses behind these, of which
one comes every 128 calls, and of a capture's look for updates, which comes at each. The
same run plants stale tensors in the modules of `tests/evidence/census/planted.py`, and looks for those that it names,
and for what it says where all were made anew. Exits with 1 above 1 %, where a stale tensor is not named, and where one
that was made anew is.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from benchmarks.turns import header
from moeparity.evidence.census.census import census
from moeparity.evidence.census.follow import followed
from moeparity.evidence.census.notice import WeightsNotice
from moeparity.evidence.census.outcome import faults
from moeparity.evidence.census.watch import DerivedWatch
from tests.evidence.census.planted import CASES
from tests.evidence.census.test_follow import bump, remade

LIMIT, STEP_S, EVERY = 0.01, 0.2, 128


def model() -> nn.Module:
    """Twenty layers of which each holds a transposed half of its weight."""
    layers = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(20)))
    refresh(layers)
    return layers


def refresh(layers: nn.Module) -> None:
    """Make the tensors anew."""
    for layer in layers.children():
        assert isinstance(layer, nn.Linear)
        layer.__dict__["half"] = layer.weight.detach()[:512].T.contiguous()


def main() -> int:
    """Print what it costs and what it finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=256, help="of 200 ms each (default: 256)")
    steps = parser.parse_args().steps
    layers = model()
    watch, notice = DerivedWatch(EVERY), WeightsNotice(layers)
    firsts, seconds, looks = [timed(lambda: watch.begin([layers]))], 0.0, 0.0
    for step in range(steps):
        with torch.no_grad():
            for parameter in layers.parameters():
                parameter.mul_(1.001)
        refresh(layers)
        watch.updated()
        looks += timed(notice.has_changed)
        spent = timed(lambda: watch.called([layers]))
        if step < 1:
            firsts.append(spent)
        else:
            seconds += spent
    shares = {"censuses": seconds / (steps * STEP_S), "a capture's looks": looks / (steps * STEP_S)}
    print(header(torch.get_num_threads()))
    print(f"the first censuses: {', '.join(f'{first:.2f} s' for first in firsts)}")
    for name, share in shares.items():
        print(f"{name}: {share:.3%} of {steps} steps of {STEP_S * 1000:.0f} ms")
    missed, innocents = judged()
    return int(max(shares.values()) > LIMIT or missed or innocents)


def timed(work: object) -> float:
    """Seconds that it takes."""
    assert callable(work)
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def judged() -> tuple[int, int]:
    """How many stale tensors were missed or misnamed, and how many of clean updates were told."""
    planted = matched = alarms = clean = 0
    for case in CASES:
        torch.manual_seed(0)
        module = case.build()
        before = census([module])
        bump(module)
        sources = sorted(each.sources for each in faults(followed(before, census([module], before))))
        planted += 1
        matched += sources == sorted(case.derived.values())
        remade(module)
        clean += 1
        alarms += bool(faults(followed(before, census([module], before))))
    print(f"planted: {matched} of {planted} modules whose stale tensors were all named with what each was made of")
    print(f"clean: {alarms} of {clean} updates told of")
    return planted - matched, alarms


if __name__ == "__main__":
    raise SystemExit(main())
