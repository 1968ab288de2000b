"""Whether it matters which tokens are computed together."""
