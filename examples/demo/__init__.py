"""`make demo`: the main job, end to end, on the embedded model and on recorded outputs of large models."""
