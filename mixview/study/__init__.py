"""`mixview study`: many runs that answer one question, with seeds, spread, and what they cost."""
