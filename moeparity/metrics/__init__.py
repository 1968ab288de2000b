"""Log-probability metrics. Each is declared once, with what it estimates, how it is reduced and who defined it."""
