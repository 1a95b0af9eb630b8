"""The bundled benchmark: procedural problems with exact answers and known memory demand. No torch."""
