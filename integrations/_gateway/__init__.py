"""Private parts of `integrations.gateway`."""
