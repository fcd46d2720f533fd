"""Fetching files over HTTP, and the SHA-256 that pin them."""
