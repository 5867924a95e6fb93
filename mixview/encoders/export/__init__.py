"""An encoder in the formats of other libraries, one file each."""
