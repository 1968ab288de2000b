"""Finished passes of a run, kept on disk so that a run that was killed goes on from them."""
