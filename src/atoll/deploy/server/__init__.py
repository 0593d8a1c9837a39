"""The server's side of a deployment: processes, proxy, handshake with the sites, the run itself."""
