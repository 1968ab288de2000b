"""The pure functions behind the ops.

Every kernel takes its inputs in the declared order, then `w` (weights by port), `p` (parameters) and `at` (attribute
values; a rounding site's value is a `torch.dtype`). Layouts are those of transformers, since on CPU they change bits.

Letters: B sequences, T tokens, H hidden or query heads, G key/value heads, D head width, E experts, K slots (top-k),
I expert width, N tokens of all sequences (B * T).
"""
