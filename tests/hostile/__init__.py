"""Files that try to run code, or to hang or crash who reads them, and every command that reads."""
