"""Other tools' files made into traces, one file for each format (`docs/traces.md`)."""
