"""The operators at times that are not equally spaced."""
