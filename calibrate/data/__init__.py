"""What a calibration reads and writes: questions, records, labels."""
