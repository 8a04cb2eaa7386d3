"""From records to scores: estimators by name, scoring of record files."""
