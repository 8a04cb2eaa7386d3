"""From messages to a `SampleSet`: native samplers, and concurrent calls for every other chat model."""
