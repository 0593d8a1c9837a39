"""Names of types that need no torch."""

ClientId = str
