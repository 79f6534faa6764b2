"""The rules by which functions pass differences on; importing one of the modules registers its own."""
