"""Where it starts: the first nodes with equal inputs and unequal output, and how the error grows from there."""
