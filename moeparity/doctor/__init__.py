"""The doctor: what one run left behind goes in, the cause of its difference comes out."""
