"""What became of every single token: what the page draws, and one safetensors file holds."""
