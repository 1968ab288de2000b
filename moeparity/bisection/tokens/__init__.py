"""What is said of the tokens: their classes, and what an engine recorded of them."""
