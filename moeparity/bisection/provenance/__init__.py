"""What a report was made with: the recipe, the weights and tokens by their digests, versions, the machine."""
