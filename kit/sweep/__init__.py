"""Notebooks over a grid of models, quantisations, policies, capacities and parameters, on one machine or a Dask cluster."""
