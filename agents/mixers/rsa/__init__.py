"""Recurrence encoding beside Aaren and attention: Huang et al., 2023."""
