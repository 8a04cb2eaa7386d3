"""Answers as lists of items (JSON fields, sentences), each kept or held back on its own.

* `item`: one item, and the verdict on it.
* `spec`: the split, the support and the cap, and the section ``items`` of an artifact.
* `gate`: the one comparison that calibration and run time share.
* `json_fields`, `sentences`: the two kinds of items.
* `measure`: from a sample set to items with uncertainties, and items compared with a reference.
* `decide`: the verdict, and what is left of the answer.
* `partial`: structured output of which some fields are held back.

The certificate's unit stays the answer: the items of one answer may depend on each other in any way.
"""
