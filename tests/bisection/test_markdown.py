"""A report in Markdown: the summary, who is to blame, one picture."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

from moeparity.bisection.markdown import drawing, markdown
from moeparity.bisection.shares.data import Attribution, ShareRow, Shares
from moeparity.bisection.summary.data import Summary
from tests.bisection.reports import REPORT, fill, grown
from tests.output.test_markdown import shown

SUMMARY = fill(Summary, verdict="k3 0.0013, above gate", starts="layers[1].moe.combine", blame="<b>@me</b> | *all*")
SHARED = fill(
    Attribution,
    shares=fill(
        Shares,
        total=1e-3,
        rows=(
            fill(ShareRow, name="op combine:accumulate", share=8e-4, of_whole=0.8, role="culprit", evidence="read"),
            fill(ShareRow, name="a part", share=7e-4, of_whole=0.7, depth=1),
            fill(ShareRow, name="op lm_head:output", share=-1e-4, of_whole=-0.1, role="helps", evidence="read"),
        ),
    ),
)


def test_the_summary_and_what_toggles_cost() -> None:
    text = markdown(replace(REPORT, summary=SUMMARY))
    tags, words = shown(text)
    assert text.startswith("### moeparity: FAIL\n")
    assert {"img", "b", "em"}.isdisjoint(tags)
    assert "<b>@me</b> | *all*" in words
    assert "refused cannot run 0.00e+00" in " ".join(words.split())
    assert "my-server, fp16" in words
    assert "Some CPU" in words


def test_shares_and_their_picture() -> None:
    report = replace(REPORT, summary=SUMMARY, attribution=SHARED)
    text = markdown(report, "parity.svg")
    assert "| op combine:accumulate | 80.0% | culprit | read |" in text
    assert "a part" not in text
    assert "![KL by toggle](parity.svg)" in text
    names = [element.text for element in ET.fromstring(drawing(report) or "").iter() if element.get("text-anchor")]
    assert names == ["op combine:accumulate", "op lm_head:output"]


def test_growth_is_drawn_where_nothing_is_shared_out_and_thinned_where_layers_are_many() -> None:
    report = replace(grown([1e-5 * (layer + 1) for layer in range(95)]), summary=SUMMARY)
    picture = drawing(report)
    assert picture is not None
    names = [element.text for element in ET.fromstring(picture).iter() if element.get("text-anchor")]
    assert (names[0], names[-1]) == ("layers[0]", "after")
    assert len(names) <= 41
    assert "![Error after each layer](x.svg)" in markdown(report, "x.svg")
    assert drawing(grown([0.0, 0.0])) is None, "equal bits are not drawn"
