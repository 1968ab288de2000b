"""What an engine recorded of the tokens, and whether the side that it is the record of gives it again."""
