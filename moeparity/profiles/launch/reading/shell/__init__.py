"""Bash as it is written: parsed by tree-sitter, walked with what the file itself sets, never run."""
