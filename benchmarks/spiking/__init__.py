"""Where tokens spike over draws of the same sums in small models of several shapes, and what ends their spikes."""
