"""The order probe: which tree a black-box callable adds along, found by calling it. docs/probe.md is the manual."""
