"""The section `updates`: what weights that change under running sequences make of the divergence."""
