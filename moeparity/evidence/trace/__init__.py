"""A trace: what one program computed, as a folder that can be read while it is written (`docs/traces.md`)."""
