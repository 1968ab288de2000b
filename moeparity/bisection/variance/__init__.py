"""The same sequences computed together in several ways, and what that changes: `moeparity variance`."""
