"""`make demo`: the main job, end to end, on a small chat model that `pip` installs and on recorded large models."""
