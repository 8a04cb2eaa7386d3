"""The base paper's experiments on recorded and simulated outputs: ``python -m benchmarks.paper --data DIR``.

`pools` reads or draws the outputs, `protocol` runs the splits, `markdown` and `figure` show the results, and `printed`
has the numbers that the paper prints.
"""
