"""StableHLO to GE graphs: what the plugin's compile worker runs."""
