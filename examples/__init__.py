"""Programs a user of Weft would start from. See README.md."""
