"""A trained model as a policy: what it remembers, how it acts, and the checks of what it is given."""
