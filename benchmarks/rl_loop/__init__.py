"""A toy that is trained by online RL, and samplers that differ from its trainer in one way each."""
