"""What a report was made from: digests of the recipe, the weights and the tokens, versions, the machine."""
