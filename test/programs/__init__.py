"""Programs and packages that tests start from."""
