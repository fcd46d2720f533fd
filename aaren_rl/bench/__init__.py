"""The command bench: measurements that hold what they time against a reference first."""
