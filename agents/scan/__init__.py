"""The scan: the state (m, u, w), its associative operator, prefix scans over it, and one step."""
