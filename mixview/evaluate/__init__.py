"""How a representation is judged, one file a protocol: features in, figures out."""
