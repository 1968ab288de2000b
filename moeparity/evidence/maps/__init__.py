"""Maps from a program's modules to the nodes of a graph, and what a trace shows of these (`docs/traces.md`)."""
