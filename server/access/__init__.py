"""Who may use a server, and how requests are checked and refused."""
