"""Which choice is to blame: read `pipeline.py` first. One folder per section of the report, one per command."""
