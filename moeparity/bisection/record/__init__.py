"""What an engine recorded of the tokens, and whether the side that stands for it reproduces that."""
