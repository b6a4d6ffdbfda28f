"""Weights where they lie: blocks on a CUDA device, linear layers straight from them, a decode loop as CUDA graphs."""
