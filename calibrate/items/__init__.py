"""Calibration of a gate on the items of answers: which fields to keep, with a certificate.

``rules`` has the promises, as calls of `calibrate.rules`; ``answers`` measures and labels records, and packs them for
the rules; ``fit`` makes the section of an artifact; ``evaluate`` and ``audit`` test it on other answers; ``figures``
counts what a threshold keeps, ``words`` and ``page`` show it; ``records`` has these steps as methods; ``documents``
reads JSON documents of other tools.
"""
