"""Log-probability metrics: each declared once, with what it estimates, how it is reduced and whose it is."""
