"""Which tests run by default and which only with `--all`: recorded, chosen, and tried with mutations."""
