"""The parts of the documentation that programs write: `python -m scripts.pages`, and `--check` that they are in step.

Pages that are written as a whole lie in `docs/generated/`. In a page that people write, a program writes what stands
between `<!-- generated: NAME -->` and `<!-- /generated -->`, and nothing else.
"""
