"""Mermaid and Graphviz text, read back by a few regular expressions."""

from __future__ import annotations

import html
import re

import yaml

from moeparity.bisection.diagram import Arrow, Box, Drawing, Group, dot, mermaid

DRAWING = Drawing(
    title='a "quoted" \\ title: #1',
    boxes=(Box(key="sourceTokens", name="tokens", op=""), Box(key="topNorm", name="norm", op="rms_norm")),
    groups=(
        Group(
            key="kind0",
            title="layers[0:4]",
            groups=(
                Group(
                    key="kind0Moe",
                    title="moe",
                    boxes=(
                        Box(key="kind0MoeRouter", name="router", op="router"),
                        Box(key="kind0MoeGate", name="gate", op="gate", differences=("output: <bf16> & #1 → fp32",)),
                    ),
                ),
            ),
        ),
    ),
    arrows=(
        Arrow(source="sourceTokens", target="kind0MoeGate", value="", kind="read"),
        Arrow(source="kind0MoeRouter", target="topNorm", value="ids", kind="read"),
        Arrow(source="kind0MoeRouter", target="kind0MoeGate", value="weights", kind="unread"),
        Arrow(source="kind0MoeRouter", target="kind0MoeGate", value="", kind="repeat"),
    ),
)


def shown(text: str) -> str:
    """What a reader of HTML sees of a label."""
    return html.unescape(re.sub(r"<br/>", " | ", text).replace("<b>", "").replace("</b>", ""))


def test_mermaid_boxes_groups_and_arrows() -> None:
    text = mermaid(DRAWING)
    head, body = text.split("---\n", 2)[1:]
    assert head == 'title: "a \\"quoted\\" \\\\ title: #1"\n'
    assert body.startswith("flowchart TB\n")
    boxes = dict(re.findall(r'^ *(\w+)[(\[]+"(.*?)"[)\]]+$', body, re.MULTILINE))
    # Mermaid's own spelling of entities: # for &#.
    assert {key: shown(re.sub(r"#(\d+);", r"&#\1;", label)) for key, label in boxes.items()} == {
        "sourceTokens": "tokens",
        "topNorm": "norm | rms_norm",
        "kind0MoeRouter": "router",
        "kind0MoeGate": "gate | output: <bf16> & #1 → fp32",
    }
    assert re.findall(r'subgraph (\w+)\["(.*)"\]', body) == [("kind0", "layers[0:4]"), ("kind0Moe", "moe")]
    assert len(re.findall(r"^ *end$", body, re.MULTILINE)) == 2
    assert re.findall(r"^  (\w+) (-\.?->)(?:\|\"(.*)\"\|)? (\w+)$", body, re.MULTILINE) == [
        ("sourceTokens", "-->", "", "kind0MoeGate"),
        ("kind0MoeRouter", "-->", "ids", "topNorm"),
        ("kind0MoeRouter", "-.->", "weights, not read", "kind0MoeGate"),
        ("kind0MoeRouter", "-.->", "next layer", "kind0MoeGate"),
    ]
    assert re.findall(r"^  class (.*) differs$", body, re.MULTILINE) == ["kind0MoeGate"]
    assert "classDef differs fill:" in body


def test_dot_boxes_groups_and_arrows() -> None:
    text = dot(DRAWING)
    assert text.startswith("digraph moeparity {\n")
    assert text.count("{") == text.count("}") == 3
    assert 'label="a \\"quoted\\" \\\\ title: #1"' in text
    boxes = dict(re.findall(r"^ *(\w+) \[label=<(.*)>(?: .*)?\]$", text, re.MULTILINE))
    assert {key: shown(label) for key, label in boxes.items()}["kind0MoeGate"] == "gate | output: <bf16> & #1 → fp32"
    assert len(boxes) == 4
    assert re.findall(r"subgraph cluster_(\w+) \{\n *label=\"(.*?)\"", text) == [
        ("kind0", "layers[0:4]"),
        ("kind0Moe", "moe"),
    ]
    arrows = re.findall(r"^  (\w+) -> (\w+) \[label=\"(.*?)\"(.*)\]$", text, re.MULTILINE)
    assert [arrow[:3] for arrow in arrows] == [
        ("sourceTokens", "kind0MoeGate", ""),
        ("kind0MoeRouter", "topNorm", "ids"),
        ("kind0MoeRouter", "kind0MoeGate", "weights, not read"),
        ("kind0MoeRouter", "kind0MoeGate", "next layer"),
    ]
    assert "dotted" in arrows[2][3]
    assert "constraint=false" in arrows[3][3]
    fill = re.findall(r"^ *(\w+) \[label=<.*> fillcolor=", text, re.MULTILINE)
    assert fill == ["kind0MoeGate"]


def test_nothing_is_marked_where_nothing_differs() -> None:
    plain = Drawing(title="t", boxes=DRAWING.boxes, groups=(), arrows=())
    assert "differs" not in mermaid(plain)
    assert "penwidth" not in dot(plain)


HOSTILE = "a\"b']c-->d%%{init: {}}%%`e`\\n\nf<script>&#35;\x1b]0;g\x07\u202eh\ud800;"
READ = "a\"b']c-->d%%{init: {}}%%`e`\\n\\nf<script>&#35;\\x1b]0;g\\x07\\u202eh\\ud800;"


def hostile() -> Drawing:
    boxes = Box(key="one", name=HOSTILE, op="op", differences=(HOSTILE,)), Box(key="two", name="two", op="op")
    group = Group(key="kind0", title=HOSTILE)
    arrow = Arrow(source="one", target="two", value=HOSTILE, kind="read")
    return Drawing(title=HOSTILE, boxes=boxes, groups=(group,), arrows=(arrow,))


def test_a_hostile_name_in_mermaid_is_text_and_nothing_else() -> None:
    text = mermaid(hostile())
    text.encode()
    head, body = text.split("---\n", 2)[1:]
    assert yaml.safe_load(head) == {"title": READ}
    kinds = [line.split()[0] for line in body.splitlines()]
    assert [kind.partition("[")[0] for kind in kinds[:6]] == ["flowchart", "one", "two", "subgraph", "end", "one"]
    assert not set("%`'\\\x1b\u202e") & set(body)
    labels = re.findall('"(.*?)"', body)
    texts = [shown(re.sub(r"#(\d+);", r"&#\1;", label)) for label in labels]
    assert texts == [f"{READ} | op | {READ}", "two | op", READ, READ]


def test_a_hostile_name_in_graphviz_is_text_and_nothing_else() -> None:
    text = dot(hostile())
    text.encode()
    (box,) = re.findall(r"^  one \[label=<(.*)> ", text, re.MULTILINE)
    assert shown(box) == f"{READ} | op | {READ}"
    strings = re.findall(r'label=("(?:[^"\\]|\\.)*")', text)
    assert [string[1:-1].replace('\\"', '"').replace("\\\\", "\\") for string in strings] == [READ] * 3
    assert not set("\x1b\u202e") & set(text)
