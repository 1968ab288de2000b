"""Every difference alone and restored, and swapped blocks."""
