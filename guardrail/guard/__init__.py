"""The gated chat models: the prompt is checked, samples are drawn and measured, and the verdict is acted on."""
