"""Files that a calibration reads and writes: questions, records, labels."""
