"""Who is to blame, by how much, and the smallest fix: `attribute: true`."""
