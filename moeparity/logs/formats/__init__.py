"""One reader per format of log; `registry` finds the one that fits a file."""
