"""What real ranks gave, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.real_ranks.report import RealRanks, SideOnRanks, Site
from moeparity.output.words import enumerated, few, quantity


def real_ranks_reading(job: RealRanks) -> tuple[str, ...]:
    """Each side, then each sum that is another than simulated."""
    sentences = []
    for side in job.sides:
        sentences.append(_side(side, job))
        sentences += _others(side, job.backend)
    return tuple(sentences)


def real_ranks_warnings(job: RealRanks) -> Iterator[str]:
    """Where what is said of a side is not what its ranks compute here."""
    for side in job.sides:
        sites = [site.node for site in side.sites if site.differing]
        if sites:
            yield (
                f"The {side.side} on {side.ranks} real ranks has other bits than simulated, from {sites[0]} on: "
                f"{job.backend} adds in another order than the one that is set there."
            )
        elif side.unequal:
            yield (
                f"The {side.side} on {side.ranks} real ranks has other bits than simulated, from {side.unequal[0]} on, "
                "and no sum over ranks is to blame: please report it."
            )


def _side(side: SideOnRanks, job: RealRanks) -> str:
    sums = sum(site.messages for site in side.sites)
    over = f"{side.side} over {quantity(side.ranks, 'rank')}"
    if not side.unequal and not any(site.differing for site in side.sites):
        return (
            f"The {over}: the values of all {side.nodes} nodes on every rank, the logits among them, and "
            f"{quantity(sums, 'sum')} of {job.backend}, are those of simulated ranks, bit for bit."
        )
    if not side.unequal:
        return f"The {over}: no value of its {side.nodes} nodes has other bits than simulated."
    count = f"{len(side.unequal)} of {side.nodes} nodes"
    return f"The {over}: {count} have other bits than simulated, the first is {side.unequal[0]}."


def _others(side: SideOnRanks, backend: str) -> Iterator[str]:
    """Sums that are others than simulated; those of one order, call and finding in one sentence."""
    of_kind: dict[tuple[object, ...], list[Site]] = {}
    for site in (site for site in side.sites if site.differing):
        of_kind.setdefault((site.order, site.call, site.orders, site.probed), []).append(site)
    for sites in of_kind.values():
        first, nodes = sites[0], enumerated([site.node for site in sites])
        differing, messages = sum(site.differing for site in sites), sum(site.messages for site in sites)
        yield (
            f"In the {side.side}, {nodes} {'adds' if len(sites) == 1 else 'add'} in {first.order}; {backend}'s "
            f"{first.call} gives other bits in {differing} of {quantity(messages, 'message')}, and {_order(first)}."
        )


def _order(site: Site) -> str:
    if site.probed:
        return f"the probe finds the order of {enumerated(site.probed)}"
    if site.orders:
        return f"its bits are those of {few(site.orders, 4)}"
    return "its order is none of those shipped"
