"""A small real language model of a made-up world, and the scripts that build, ask and measure it."""
