"""The trials of every difference, alone and restored, and of swapped blocks."""
