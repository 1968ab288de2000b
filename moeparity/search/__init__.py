"""What each toggle costs, what is enough to restore, and where in the layers it sits: algorithms on an memo."""
