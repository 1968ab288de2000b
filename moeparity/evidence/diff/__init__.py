"""`moeparity diff`: two traces that are not op for op the same, aligned and compared (`docs/diff.md`)."""
