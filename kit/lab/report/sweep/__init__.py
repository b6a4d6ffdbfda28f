"""Notebooks over a grid of models, quantizations, policies, capacities and parameters, on one machine or a Dask cluster."""
