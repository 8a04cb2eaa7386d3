"""Answers as lists of items, the fields of their JSON, each kept or held back by itself.

* `item`: one item, and the verdict on it.
* `spec`: how answers are split, and the section ``items`` of an artifact.
* `json_fields`, `paths`: the items of a document, and their names.
* `measure`: from a sample set to items with uncertainties, and items compared with a reference.
* `gate`: the verdict on each item, by the one comparison that calibration and run time share (`spec.kept`).
* `release`: what is left of the answer.
* `partial`: structured output of which some fields are held back.

The unit of the certificate is the answer: the items of one answer may depend on each other in any way.
"""
