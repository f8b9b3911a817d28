"""Code that the papers' folders share; it imports none of them."""
