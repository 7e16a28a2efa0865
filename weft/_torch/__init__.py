"""What Weft registers with torch and changes in it."""
