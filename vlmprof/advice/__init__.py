"""One table of rules: from a record's figures to findings in plain words, each with the figures behind it."""

from vlmprof.advice.rules import RULES, advise

__all__ = ["RULES", "advise"]
