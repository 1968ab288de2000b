"""From a kernel file and a node to what `moeparity certify` prints."""

from __future__ import annotations

from pathlib import Path

from moeparity.plan.bound import BoundGraph
from moeparity.plan.graph import Node
from moeparity.probe.kernels.certify import certify_node
from moeparity.probe.kernels.launch import is_kernel_file, open_kernel
from moeparity.probe.kernels.node import NODES
from moeparity.probe.kernels.text import node_text
from moeparity.probe.run import numbers


def certify_file(
    target: str, folder: Path, plan: BoundGraph, node: Node, *, tokens: str, width: int | None
) -> tuple[str, bool] | None:
    """The verdict in words and whether it holds; None where `target` is no kernel that is held to all of a node."""
    kernel = open_kernel(folder / target) if is_kernel_file(target) else None
    if kernel is None or kernel.file.computes not in NODES:
        return None
    verdict = certify_node(kernel, plan, node, numbers("--m", tokens, least=1), width)
    return node_text(kernel, target, verdict), verdict.holds
