"""The section `blame`: which toggles make the divergence."""
