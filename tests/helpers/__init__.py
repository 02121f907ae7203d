"""What the tests share. Each module says what it holds."""
