"""The items of recorded answers: the fields of their JSON, measured and labelled.

``answers`` splits, measures and labels records; ``figures`` counts what a threshold keeps, by field; ``documents``
reads JSON documents of other tools. An item is then a row with a score and a label as a whole answer is, and its answer
is its group (`calibrate.rules.items`): fits, audits, evaluations, plans and reports read both alike.
"""
