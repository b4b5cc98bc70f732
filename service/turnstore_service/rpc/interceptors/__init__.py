"""What is done around every call, one file each."""
