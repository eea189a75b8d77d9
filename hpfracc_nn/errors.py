"""The checks behind every message: the rule, the value that broke it, the way out."""
