"""Triton kernels that train blocks of Decision-Aaren on CUDA devices: what the CPU's kernels beside this folder do."""
