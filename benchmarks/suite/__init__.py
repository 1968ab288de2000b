"""What the test suites of two commits cost, in CPU seconds."""
