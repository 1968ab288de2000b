"""The graph that both sides ran: its nodes with the choices of each side, how sure each is and what set it."""
