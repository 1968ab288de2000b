"""Engine profiles compared, what a launch configuration implies, and how sure each value is. No torch here."""
