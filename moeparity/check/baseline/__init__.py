"""The lock: what recipes are compared with from one commit to the next, kept in git."""
