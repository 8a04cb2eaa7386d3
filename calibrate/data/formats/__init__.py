"""Files from other tools: generations, scores and labels to records (`read`), data sets to questions."""
