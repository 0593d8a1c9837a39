"""Tables: columns with kinds, statistics of training rows, and the preparation of rows that follows from them."""
