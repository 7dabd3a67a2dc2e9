"""What an API's document says about its backend: resources, how they hang together, what each operation does."""
