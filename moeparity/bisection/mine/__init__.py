"""The prompts most likely to flip: `moeparity mine`."""
