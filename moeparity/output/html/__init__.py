"""Reports as one HTML page that needs no other file and no network: the terminal's text, with figures."""
