"""Code that several wings (the folders of the papers) use: options, models, dropout, padding.

This code imports no wing.
"""
