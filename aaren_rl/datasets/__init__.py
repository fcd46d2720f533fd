"""The command datasets: what lies here, described, verified, downloaded and converted."""
