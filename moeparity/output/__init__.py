"""What all reports are written with: blocks and their renderers, files, strict JSON, words."""
