"""The section `rewards`: the validation loss of a reward model on each side, and what lies between them."""
