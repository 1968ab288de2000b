"""The graph that both sides ran: its nodes, each side's choices there, their evidence and what set them."""
