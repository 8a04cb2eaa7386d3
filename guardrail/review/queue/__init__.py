"""The review queue: items and decisions in a database (SQLite or PostgreSQL)."""
