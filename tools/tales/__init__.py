"""The grammar of the tales on which the shipped model is trained: rules, generator and parser."""
