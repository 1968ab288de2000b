"""The order probe: finds the tree along which a black-box callable adds, by calling it. docs/probe.md is the manual."""
