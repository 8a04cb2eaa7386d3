"""The page on which people decide what was held back."""
