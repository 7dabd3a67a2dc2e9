"""How a simulated API answers a request."""
