"""What recipes are held to from one commit to the next: a lock, kept in git."""
