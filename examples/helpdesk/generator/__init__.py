"""The generator of the helpdesk's tasks: `python -m generator FILE`, in the folder above, writes them."""
