"""Dtypes, raw bits and summation orders: the arithmetic everything else is built from."""
