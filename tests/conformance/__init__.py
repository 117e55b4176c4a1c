"""One suite that every driver passes; a driver is added in drivers.py."""
