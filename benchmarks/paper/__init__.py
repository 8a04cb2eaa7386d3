"""The base paper's experiments beside our own measurements: ``python -m benchmarks.paper --data DIR --out docs``.

`calibrate.evaluation.tables` produces the paper's five tables in form; `printed` holds the paper's numbers.
"""
