"""The result of a bisection as plain data, and its renderings. No torch here."""
