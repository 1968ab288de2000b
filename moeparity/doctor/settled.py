"""A standing that the bounds of noise settle, where averages over few sequences do not."""

from __future__ import annotations

from dataclasses import replace

from moeparity.doctor.case import Case
from moeparity.doctor.noise import is_far_beyond, may_make
from moeparity.doctor.report import Noise
from moeparity.doctor.standing import Standing


def settled(case: Case, stand: Standing, of_noise: Noise | None) -> Standing:
    """The standing, with fewer rivals if the difference is far beyond noise and the first hypothesis leaves no more
    than noise: a hypothesis that leaves more than legal arithmetic can make is no rival then. With few sequences this
    decides where averages have no bounds.
    """
    if of_noise is None or not is_far_beyond(of_noise, case.difference):
        return stand
    if not may_make(of_noise, case.difference.d - stand.first.simulated):
        return stand
    rivals = tuple(each for each in stand.rivals if may_make(of_noise, case.difference.d - each.simulated))
    return replace(stand, rivals=rivals, is_settled=True)
