"""What stands behind the public calls: reading GE IR, checking graphs against operator definitions, compiling them."""
