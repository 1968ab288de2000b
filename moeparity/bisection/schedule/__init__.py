"""The section `schedule`: whether it matters which tokens are computed together."""
