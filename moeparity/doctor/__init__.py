"""The doctor: takes what one run left behind, and names the cause of its difference."""
