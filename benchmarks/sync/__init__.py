"""Which references of a plugin an upstream range breaks, found by importing upstream: what the tool is judged by."""
