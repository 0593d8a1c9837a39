"""Names of types that can be imported without torch."""

ClientId = str  # the name of a client, unique in a federation
