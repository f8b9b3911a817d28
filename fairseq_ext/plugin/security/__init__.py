"""Security: nothing in a file is evaluated or imported, and only data are unpickled."""
