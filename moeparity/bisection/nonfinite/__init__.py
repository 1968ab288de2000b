"""Where NaN and infinities come from: the first node, token and expert of each side that has one."""
