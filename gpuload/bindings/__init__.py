"""Where ctypes and driver packages end: foreign error conventions become exceptions here, once."""
