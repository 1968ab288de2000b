"""What a served engine writes of itself from inside: its arguments as it resolved them, its steps, its tokens."""
