"""Runs of transformers with a planted fault or without one, examined by the doctor."""
