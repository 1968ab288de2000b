"""Which choice is to blame: differences become toggles, toggles become trials, trials become sentences. No tensors."""
