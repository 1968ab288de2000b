"""Where the divergence starts (the roots: nodes with equal inputs and unequal output), and how the error grows."""
