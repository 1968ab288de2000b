"""What the job's ranks computed, in sentences and as a table of sums."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.data import ReportData
from moeparity.bisection.real_ranks.data import RealRanks, SideOnRanks, Site
from moeparity.output.blocks import Group, bullets, columns, group, table
from moeparity.output.words import enumerated, few, quantity


def real_ranks_reading(job: RealRanks) -> tuple[str, ...]:
    """A sentence for each side, then for each sum that differs from the simulated one."""
    sentences = []
    for side in job.sides:
        sentences.append(_side(side, job))
        sentences += _others(side, job.backend)
    return tuple(sentences)


def real_ranks_warnings(job: RealRanks) -> Iterator[str]:
    """A warning for each side whose bits on real ranks are not the simulated ones."""
    for side in job.sides:
        sites = [site.node for site in side.sites if site.differing]
        if sites:
            yield (
                f"The {side.side} on {side.ranks} real ranks has other bits than simulated, from {sites[0]} on: "
                f"{job.backend} adds there in another order than the {side.side} is set to."
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
    count = f"{len(side.unequal)} of {quantity(side.nodes, 'node')} {'has' if len(side.unequal) == 1 else 'have'}"
    return f"The {over}: {count} other bits than simulated, the first is {side.unequal[0]}."


def _others(side: SideOnRanks, backend: str) -> Iterator[str]:
    """Sums that differ from the simulated ones; one sentence for those with the same order, call and finding."""
    of_kind: dict[tuple[object, ...], list[Site]] = {}
    for site in (site for site in side.sites if site.differing):
        of_kind.setdefault((site.order, site.call, site.orders, site.probed), []).append(site)
    for sites in of_kind.values():
        first, nodes = sites[0], enumerated([site.node for site in sites])
        differing, messages = sum(site.differing for site in sites), sum(site.messages for site in sites)
        yield (
            f"In the {side.side}, {nodes} {'is' if len(sites) == 1 else 'are'} set to order {first.order}; {backend}'s "
            f"{first.call} gives other bits in {differing} of {quantity(messages, 'message')}, and {_order(first)}."
        )


def _order(site: Site) -> str:
    if site.probed:
        order, *same = site.probed
        return f"the probe finds {order}{f' (here the same as {enumerated(same)})' if same else ''}"
    if site.orders:
        return f"its bits are those of {few(site.orders, 4)}"
    return "its order is none of those shipped"


def show(report: ReportData) -> Iterator[Group]:
    """The group about what a live job computed."""
    job = report.real_ranks
    if job is None:
        return
    titles = ("messages", "elements", "dtype", "ranks", "other bits", "order")
    rows = [
        (
            f"{side.side}: {site.node}",
            *(str(site.messages), _elements(site), site.dtype, str(site.ranks), str(site.differing), site.order),
        )
        for side in job.sides
        for site in side.sites
    ]
    title = f"Real ranks ({quantity(job.processes, 'process')}, {job.backend})"
    sums = table(columns(*titles, first="sum over ranks", words=("dtype", "order", "elements")), rows)
    yield group(title, bullets(job.reading), sums)


def _elements(site: Site) -> str:
    if site.least_elements == site.most_elements:
        return f"{site.most_elements:,}"
    return f"{site.least_elements:,} to {site.most_elements:,}"
