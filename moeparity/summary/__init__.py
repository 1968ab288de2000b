"""What the passes saw, put into a Report."""
