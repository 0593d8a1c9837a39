"""Check uploads before the server uses them."""
