"""Adapters: one module for each framework that the guard can be put in front of. Import the module you need."""
