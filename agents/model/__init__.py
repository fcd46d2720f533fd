"""The decision model: its layers, blocks, trunk, tokens and action head."""
