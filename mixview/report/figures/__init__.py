"""The figures of the paper, from one's own images and runs: `mixview figure …`. Each is a PNG and an SVG."""
