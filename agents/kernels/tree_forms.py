"""What tree attention's samplers and its kernel agree on; a file of its own, because the kernel needs Numba."""

UNIFORM, HORIZON, MEAN, POSITIVE = range(4)  # forms of a bud's mass
DECAY = 0.99  # b of equation (3), the paper's
LARGEST = 300.0  # exponents are cut here: two such factors and a sum over any memory stay finite in float64
