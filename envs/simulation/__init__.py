"""Simulation: rollouts of many environments in step, in processes, recorded and rendered."""
