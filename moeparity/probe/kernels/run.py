"""Runs `moeparity kernel certify` for a kernel file and a node, up to the report."""

from __future__ import annotations

from pathlib import Path

from moeparity.output.blocks import Document
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node
from moeparity.probe.kernels.certify import certify_node
from moeparity.probe.kernels.launch import is_kernel_file, open_kernel
from moeparity.probe.kernels.node import NODES
from moeparity.probe.kernels.show import document
from moeparity.probe.run import numbers


def certify_file(
    target: str, folder: Path, plan: Plan, node: Node, *, tokens: str, width: int | None
) -> tuple[Document, bool] | None:
    """The report and whether it holds; None if `target` is not a kernel that is compared with all choices of a node."""
    kernel = open_kernel(folder / target) if is_kernel_file(target) else None
    if kernel is None or kernel.file.computes not in NODES:
        return None
    verdict = certify_node(kernel, plan, node, numbers("--m", tokens, least=1), width)
    return document(kernel, target, verdict), verdict.holds
