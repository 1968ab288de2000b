"""Real ranks for the terminal."""

from __future__ import annotations

from rich.console import Group

from moeparity.bisection.real_ranks.report import Site
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import bullets, plain_table
from moeparity.output.words import quantity


def _section(report: Report) -> Shown:
    job = report.real_ranks
    if job is None:
        return
    table = plain_table(
        "messages", "elements", "dtype", "ranks", "other bits", "order", names="sum over ranks", names_first=True
    )
    for side in job.sides:
        for site in side.sites:
            numbers = (str(site.messages), _elements(site), site.dtype, str(site.ranks), str(site.differing))
            table.add_row(f"{side.side}: {site.node}", *numbers, site.order)
    yield f"Real ranks ({quantity(job.processes, 'process')}, {job.backend})", Group(bullets(job.reading), table)


def _elements(site: Site) -> str:
    if site.least_elements == site.most_elements:
        return f"{site.most_elements:,}"
    return f"{site.least_elements:,} to {site.most_elements:,}"


SHOWN = {"real_ranks": _section}
