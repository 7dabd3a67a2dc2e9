"""Values for schemas: making them, making others fit, and what realistic ones look like."""
