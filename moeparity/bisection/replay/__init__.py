"""The replay ladder: `replay: true`."""
