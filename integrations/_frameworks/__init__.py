"""Private parts of the guards for other agent frameworks."""
