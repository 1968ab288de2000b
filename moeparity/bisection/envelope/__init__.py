"""The envelope (`envelope: N`): whether another legal order of the same sums explains a difference."""
