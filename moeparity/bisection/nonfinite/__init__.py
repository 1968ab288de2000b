"""Where NaN and infinities start: each side's first node, token and expert that has one."""
