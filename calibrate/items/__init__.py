"""Calibration of a gate on the items of answers: which fields or sentences to keep, with a certificate.

``rules`` is the mathematics; ``answers`` turns records into lists of (uncertainty, wrong) per answer; ``fit`` makes the
section of an artifact; ``figures`` counts what a threshold keeps; ``evaluate`` and ``audit`` test it on other answers;
``records`` has these steps as methods.
"""
